#pragma once
#include <cstddef>
#include <cstdint>

// What the Python package calls through ctypes: the C++ client without C++ types, and without CPython's, so that one
// library serves every Python. A private interface: the package and this library are of one build.
//
// Functions return an absl::StatusCode, 0 for success; dtorch_error() then tells more. Objects come out as pointers to
// be given to dtorch_free() once. Placements are texts, "S(0) R", one for each mesh dimension; empty: the default.
// Nothing here waits for the daemon but dtorch_connect and dtorch_wait. Thread: safe, as the C++ client is.

extern "C" {

struct dtorch_object;

/// Of the last failed call of this thread; the texts live until the next call of this thread. `rank` is -1 when none is
/// to blame.
struct dtorch_error_info {
  const char* message;
  const char* operator_name;
  const char* site;
  std::int32_t rank;
};
dtorch_error_info dtorch_error();

/// Where a call stands in the program.
struct dtorch_site {
  const char* file;
  std::uint32_t line;
};

/// A tensor in host memory. `strides` in elements, null for contiguous; `bytes` may be read from `data`.
struct dtorch_host_tensor {
  const void* data;
  std::uint64_t bytes;
  std::int32_t dtype;  // dtorch::DType
  std::int32_t dims;
  const std::int64_t* shape;
  const std::int64_t* strides;
};

struct dtorch_session_info {
  std::uint64_t id;
  std::int64_t daemon_pid;
  std::int32_t world_size;
};

void dtorch_free(dtorch_object* object);

/// `address` empty: the default one. `timeout` in seconds.
int dtorch_connect(const char* address, double timeout, const char* name, int sync, int validate,
                   dtorch_object** session, dtorch_session_info* info);
/// `ranks` null: all workers in one dimension.
/// `names` (may be null): one for each dimension.
int dtorch_mesh(dtorch_object* session, const std::int32_t* ranks, std::int32_t count, const std::int64_t* shape,
                std::int32_t dims, const char* const* names, dtorch_object** mesh);

int dtorch_put(dtorch_object* session, dtorch_object* mesh, const char* placements, const dtorch_host_tensor* value,
               double timeout, dtorch_site site, dtorch_object** tensor);
int dtorch_put_shards(dtorch_object* session, dtorch_object* mesh, const char* placements,
                      const dtorch_host_tensor* parts, std::int32_t count, const std::int64_t* shape, std::int32_t dims,
                      double timeout, dtorch_site site, dtorch_object** tensor);
/// `arguments` is a serialised dtorch.v1.Arguments; its tensors are positions in `tensors`. `mesh` (may be null) and
/// `placements` are for operators without tensor arguments. `results` has room for `outputs` tensors.
/// `timeout` in seconds; 0: none.
int dtorch_call(dtorch_object* session, const char* name, const void* arguments, std::uint64_t bytes,
                dtorch_object* const* tensors, std::int32_t count, dtorch_object* mesh, const char* placements,
                std::uint32_t outputs, int implicit, double timeout, dtorch_site site, dtorch_object** results);
/// As dtorch_call, without running it: a future of JSON, see dtorch_json.
int dtorch_explain(dtorch_object* session, const char* name, const void* arguments, std::uint64_t bytes,
                   dtorch_object* const* tensors, std::int32_t count, std::uint32_t outputs, dtorch_site site,
                   dtorch_object** future);
/// Futures of JSON.
int dtorch_rules(dtorch_object* session, dtorch_object** future);
int dtorch_declare_rule(dtorch_object* session, const char* name, const char* rule, dtorch_object** future);
int dtorch_redistributions(dtorch_object* session, int forget, dtorch_object** future);
int dtorch_redistribute(dtorch_object* tensor, const char* placements, double timeout, dtorch_site site,
                        dtorch_object** result);

/// `rank` negative: the whole value; else the part that this rank holds.
int dtorch_get(dtorch_object* tensor, std::int32_t rank, dtorch_object** future);
int dtorch_describe(dtorch_object* tensor, dtorch_object** future);
int dtorch_synchronize(dtorch_object* session, dtorch_object** future);
int dtorch_cancel(dtorch_object* session);
int dtorch_await_workers(dtorch_object* session, dtorch_object** future);
/// `timeout` in seconds; negative: for ever. DEADLINE_EXCEEDED: no answer yet, the future stays good.
int dtorch_wait(dtorch_object* future, double timeout);
/// Whether dtorch_wait would return at once: 1 or 0.
int dtorch_poll(dtorch_object* future);
/// A descriptor that is readable once dtorch_wait would return at once, as long as the future lives; -1: there is none.
int dtorch_event(dtorch_object* future);
/// Of a future that dtorch_wait has found resolved: the value (`data` null for a description), and the placements
/// described. They live as long as the future.
int dtorch_result(dtorch_object* future, dtorch_host_tensor* value, const char** placements);
/// Likewise, of a future of JSON.
int dtorch_json(dtorch_object* future, const char** text);

/// A TensorChecker; texts empty: none. `dump_when`: 0: unequal, 1: first unequal, 2: all.
int dtorch_checker(const char* references, int record, const char* dumps, int dump_when, dtorch_object** checker);
int dtorch_record(dtorch_object* checker, const char* tag, const dtorch_host_tensor* value);

/// A Comparison. It lives until the next one of this thread. Indices have `dims` extents, and are
/// there when there is a mismatch, or a difference greater than 0.
struct dtorch_comparison {
  const char* text;
  const char* problem;
  const char* actual;
  const char* expected;
  const std::int64_t* first_mismatch;
  const std::int64_t* greatest_at;
  std::int32_t dims;  // of the tensor
  std::int64_t elements;
  std::int64_t mismatches;
  double greatest_difference;
};
int dtorch_check(dtorch_object* checker, const char* tag, const dtorch_host_tensor* value, double rtol, double atol,
                 int equal_nan, dtorch_comparison* comparison);
}
