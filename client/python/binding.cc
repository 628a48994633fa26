#include "client/python/binding.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/node_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/cpp/fork.h"
#include "client/python/object.h"
#include "dtorch/v1/types.pb.h"
#include "proto/codec.h"

using dtorch::Argument;
using dtorch::Mesh;
using dtorch::Placement;
using dtorch::Placements;
using dtorch::Session;
using dtorch::Site;
using dtorch::Tensor;
using dtorch::TensorChecker;
using dtorch::binding::Result;
using Future = dtorch::binding::AnyFuture;

namespace {

struct ErrorTexts {
  std::string message;
  std::string operatorName;
  std::string site;
  std::int32_t rank = -1;
};
thread_local ErrorTexts lastError;

int failed(const absl::Status& status) {
  lastError = {std::string(status.message()), "", "", -1};
  if (const auto error = dtorch::operatorError(status)) {
    lastError.operatorName = error->operatorName;
    lastError.site = error->site;
    lastError.rank = error->rank.value_or(-1);
  }
  return static_cast<int>(status.code());
}

}  // namespace

namespace {

template <typename T>
dtorch_object* wrap(T value) {
  return new dtorch_object{std::move(value)};
}

template <typename T>
T& as(dtorch_object* object) {
  if (object == nullptr) throw std::invalid_argument("the session was closed");
  return std::get<T>(object->value);
}

Session& session(dtorch_object* object) { return *as<std::shared_ptr<Session>>(object); }

/// Runs `body`; what it throws, a wrong kind of object among it, becomes an error.
template <typename Body>
int guarded(const Body& body) {
  try {
    const absl::Status status = body();
    return status.ok() ? 0 : failed(status);
  } catch (const std::invalid_argument& error) {
    return failed(absl::FailedPreconditionError(error.what()));
  } catch (const std::exception& error) {
    return failed(absl::InternalError(error.what()));
  }
}

Site siteOf(dtorch_site site) {
  static std::mutex mutex;
  static absl::node_hash_set<std::string> files;
  static const int ours = dtorch::forkDepth();
  if (dtorch::forkDepth() != ours)
    return Site::of("python", 0);  // who held the mutex is not here, and the call is refused
  const std::lock_guard lock(mutex);
  return Site::of(files.emplace(site.file).first->c_str(), site.line);
}

std::string textOf(const Placements& placements) {
  return absl::StrJoin(placements, " ", [](std::string* out, const Placement& p) { out->append(p.toString()); });
}

dtorch::HostView viewOf(const dtorch_host_tensor& value) {
  std::vector<std::int64_t> shape(value.shape, value.shape + value.dims);
  std::vector<std::int64_t> strides;
  if (value.strides != nullptr) strides.assign(value.strides, value.strides + value.dims);
  return dtorch::HostView::raw(value.data, value.bytes, static_cast<dtorch::DType>(value.dtype), std::move(shape),
                               std::move(strides));
}

/// Puts tensors in the places of their positions.
class ArgumentReader {
 public:
  ArgumentReader(dtorch_object* const* tensors, std::int32_t count) {
    for (std::int32_t i = 0; i < count; ++i) tensors_.push_back(as<Tensor>(tensors[i]));
  }
  absl::StatusOr<Argument> read(const dtorch::Value& value) {
    if (const auto* one = value.as<dtorch::TensorArg>()) {
      if (one->index >= tensors_.size()) return absl::InvalidArgumentError("an argument names no tensor");
      return Argument(tensors_[one->index]);
    }
    const auto* list = value.as<dtorch::TensorListArg>();
    if (list == nullptr) return Argument(value);
    auto tensors = std::make_unique<std::vector<Tensor>>();
    for (const std::optional<std::uint32_t>& index : list->indices) {
      if (index && *index >= tensors_.size()) return absl::InvalidArgumentError("an argument names no tensor");
      tensors->push_back(index ? tensors_[*index] : Tensor());
    }
    lists_.push_back(std::move(tensors));
    return Argument(*lists_.back());
  }

 private:
  std::vector<Tensor> tensors_;
  std::vector<std::unique_ptr<std::vector<Tensor>>> lists_;  // arguments refer to them
};

/// A call's arguments as the C++ client takes them. Must outlive the call.
struct DecodedCall {
  DecodedCall(dtorch_object* const* tensors, std::int32_t count) : reader(tensors, count) {}
  absl::Status decode(const void* bytes, std::uint64_t length) {
    dtorch::v1::Arguments wire;
    if (!wire.ParseFromArray(bytes, static_cast<int>(length))) {
      return absl::InvalidArgumentError("the arguments are no dtorch.v1.Arguments");
    }
    absl::StatusOr<dtorch::Arguments> decoded = dtorch::fromWire(wire);
    if (!decoded.ok()) return decoded.status();
    for (const dtorch::Value& value : decoded->positional) {
      absl::StatusOr<Argument> argument = reader.read(value);
      if (!argument.ok()) return argument.status();
      positional.push_back(*std::move(argument));
    }
    for (const auto& [named, value] : decoded->named) {
      absl::StatusOr<Argument> argument = reader.read(value);
      if (!argument.ok()) return argument.status();
      options.named.emplace_back(named, *std::move(argument));
    }
    return absl::OkStatus();
  }

  ArgumentReader reader;
  std::vector<Argument> positional;
  dtorch::CallOptions options;
};

absl::Status call(dtorch_object* owner, const char* name, DecodedCall& decoded, dtorch_object* mesh,
                  const char* placements, std::uint32_t outputs, int implicit, dtorch_site site,
                  dtorch_object** results) {
  if (mesh != nullptr) decoded.options.mesh = as<Mesh>(mesh);
  absl::StatusOr<Placements> placed = dtorch::parsePlacements(placements);
  if (!placed.ok()) return placed.status();
  decoded.options.placements = *std::move(placed);
  decoded.options.implicit = implicit != 0;
  std::vector<Tensor> made = session(owner).callMany(name, decoded.positional, outputs, decoded.options, siteOf(site));
  for (Tensor& tensor : made) *results++ = wrap(std::move(tensor));
  return absl::OkStatus();
}

template <typename T>
Result resultOf(const T& value) {
  Result result;
  if constexpr (std::is_same_v<T, dtorch::HostTensor>) {
    result.value = value;
    result.meta = value.meta();
  } else if constexpr (std::is_same_v<T, std::string>) {
    result.json = value;
  } else {
    result.meta = value.meta;
    result.placements = textOf(value.placements);
    dtorch::v1::DeviceMesh mesh;
    toWire(value.mesh.device(), &mesh);
    const auto written = google::protobuf::util::MessageToJsonString(mesh, &result.json);
    if (!written.ok()) throw std::logic_error("a mesh that is no JSON");
  }
  return result;
}

std::chrono::steady_clock::duration seconds(double count) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(count));
}

/// A whole day is longer than any wait can be without a signal reaching Python: the package waits in short pieces.
constexpr double kLongest = 86400;

std::chrono::milliseconds timeLimit(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(std::min(seconds, 4e6) * 1000)));
}

absl::Status wait(Future& box, double timeout) {
  const auto limit = seconds(timeout < 0 || timeout > kLongest ? kLongest : timeout);
  return std::visit(
      [&](auto& future) -> absl::Status {
        using Value = typename std::remove_reference_t<decltype(future)>::Result;
        Value value = future.wait(limit);
        if constexpr (std::is_same_v<Value, absl::Status>) {
          return value;
        } else {
          if (!value.ok()) return value.status();
          const std::lock_guard lock(box.mutex);
          if (!box.result) box.result = resultOf(*value);
          return absl::OkStatus();
        }
      },
      box.future);
}

template <typename T>
dtorch_object* wrapFuture(T future) {
  return wrap(std::unique_ptr<Future>(new Future{std::move(future), {}, {}}));
}

}  // namespace

extern "C" {

dtorch_error_info dtorch_error() {
  return {lastError.message.c_str(), lastError.operatorName.c_str(), lastError.site.c_str(), lastError.rank};
}

void dtorch_free(dtorch_object* object) { delete object; }

int dtorch_connect(const char* address, double timeout, const char* name, int sync, int validate, dtorch_object** out,
                   dtorch_session_info* info) {
  return guarded([&]() -> absl::Status {
    absl::StatusOr<std::shared_ptr<Session>> connected = Session::connect(
        {.address = address, .timeout = seconds(timeout), .name = name, .sync = sync != 0, .validate = validate != 0});
    if (!connected.ok()) return connected.status();
    *info = {(*connected)->id(), (*connected)->daemonPid(), (*connected)->worldSize()};
    *out = wrap(*std::move(connected));
    return absl::OkStatus();
  });
}

int dtorch_mesh(dtorch_object* owner, const std::int32_t* ranks, std::int32_t count, const std::int64_t* shape,
                std::int32_t dims, const char* const* names, dtorch_object** out) {
  return guarded([&]() -> absl::Status {
    absl::StatusOr<Mesh> mesh = session(owner).mesh();
    std::vector<std::string> named;
    if (names != nullptr) named.assign(names, names + dims);
    if (ranks != nullptr) mesh = session(owner).mesh({ranks, ranks + count}, {shape, shape + dims}, std::move(named));
    if (!mesh.ok()) return mesh.status();
    *out = wrap(*std::move(mesh));
    return absl::OkStatus();
  });
}

int dtorch_put(dtorch_object* owner, dtorch_object* mesh, const char* placements, const dtorch_host_tensor* value,
               double timeout, dtorch_site site, dtorch_object** out) {
  return guarded([&]() -> absl::Status {
    absl::StatusOr<Placements> placed = dtorch::parsePlacements(placements);
    if (!placed.ok()) return placed.status();
    *out = wrap(session(owner).put(viewOf(*value), as<Mesh>(mesh), *std::move(placed), {.timeout = timeLimit(timeout)},
                                   siteOf(site)));
    return absl::OkStatus();
  });
}

int dtorch_put_shards(dtorch_object* owner, dtorch_object* mesh, const char* placements,
                      const dtorch_host_tensor* parts, std::int32_t count, const std::int64_t* shape, std::int32_t dims,
                      double timeout, dtorch_site site, dtorch_object** out) {
  return guarded([&]() -> absl::Status {
    absl::StatusOr<Placements> placed = dtorch::parsePlacements(placements);
    if (!placed.ok()) return placed.status();
    std::vector<dtorch::HostView> views;
    for (std::int32_t i = 0; i < count; ++i) views.push_back(viewOf(parts[i]));
    *out = wrap(session(owner).putShards(views, {shape, shape + dims}, as<Mesh>(mesh), *std::move(placed),
                                         {.timeout = timeLimit(timeout)}, siteOf(site)));
    return absl::OkStatus();
  });
}

int dtorch_call(dtorch_object* owner, const char* name, const void* arguments, std::uint64_t bytes,
                dtorch_object* const* tensors, std::int32_t count, dtorch_object* mesh, const char* placements,
                std::uint32_t outputs, int implicit, double timeout, dtorch_site site, dtorch_object** results) {
  return guarded([&]() -> absl::Status {
    DecodedCall decoded(tensors, count);
    if (absl::Status status = decoded.decode(arguments, bytes); !status.ok()) return status;
    decoded.options.timeout = timeLimit(timeout);
    return call(owner, name, decoded, mesh, placements, outputs, implicit, site, results);
  });
}

int dtorch_explain(dtorch_object* owner, const char* name, const void* arguments, std::uint64_t bytes,
                   dtorch_object* const* tensors, std::int32_t count, std::uint32_t outputs, dtorch_site site,
                   dtorch_object** future) {
  return guarded([&]() -> absl::Status {
    DecodedCall decoded(tensors, count);
    if (absl::Status status = decoded.decode(arguments, bytes); !status.ok()) return status;
    *future = wrapFuture(session(owner).explain(name, decoded.positional, outputs, decoded.options, siteOf(site)));
    return absl::OkStatus();
  });
}

int dtorch_rules(dtorch_object* owner, dtorch_object** future) {
  return guarded([&] {
    *future = wrapFuture(session(owner).rules());
    return absl::OkStatus();
  });
}

int dtorch_declare_rule(dtorch_object* owner, const char* name, const char* rule, dtorch_object** future) {
  return guarded([&] {
    *future = wrapFuture(session(owner).declareRule(name, rule));
    return absl::OkStatus();
  });
}

int dtorch_redistributions(dtorch_object* owner, int forget, dtorch_object** future) {
  return guarded([&] {
    *future = wrapFuture(session(owner).redistributions(forget != 0));
    return absl::OkStatus();
  });
}

int dtorch_redistribute(dtorch_object* tensor, const char* placements, double timeout, dtorch_site site,
                        dtorch_object** out) {
  return guarded([&]() -> absl::Status {
    absl::StatusOr<Placements> placed = dtorch::parsePlacements(placements);
    if (!placed.ok()) return placed.status();
    *out = wrap(as<Tensor>(tensor).redistribute(*std::move(placed), {.timeout = timeLimit(timeout)}, siteOf(site)));
    return absl::OkStatus();
  });
}

int dtorch_get(dtorch_object* tensor, std::int32_t rank, dtorch_object** out) {
  return guarded([&] {
    const Tensor& value = as<Tensor>(tensor);
    *out = wrapFuture(rank < 0 ? value.get() : value.getLocal(rank));
    return absl::OkStatus();
  });
}

int dtorch_describe(dtorch_object* tensor, dtorch_object** out) {
  return guarded([&] {
    *out = wrapFuture(as<Tensor>(tensor).describe());
    return absl::OkStatus();
  });
}

int dtorch_synchronize(dtorch_object* owner, dtorch_object** out) {
  return guarded([&] {
    *out = wrapFuture(session(owner).synchronize());
    return absl::OkStatus();
  });
}

int dtorch_cancel(dtorch_object* owner) {
  return guarded([&] { return session(owner).cancel(); });
}

int dtorch_await_workers(dtorch_object* owner, dtorch_object** out) {
  return guarded([&] {
    *out = wrapFuture(session(owner).awaitWorkers());
    return absl::OkStatus();
  });
}

int dtorch_wait(dtorch_object* future, double timeout) {
  return guarded([&] { return wait(*as<std::unique_ptr<Future>>(future), timeout); });
}

int dtorch_poll(dtorch_object* future) {
  return std::visit([](auto& each) { return each.poll() ? 1 : 0; }, as<std::unique_ptr<Future>>(future)->future);
}

int dtorch_event(dtorch_object* future) {
  return std::visit([](auto& each) { return each.event(); }, as<std::unique_ptr<Future>>(future)->future);
}

int dtorch_result(dtorch_object* future, dtorch_host_tensor* value, const char** placements) {
  return guarded([&]() -> absl::Status {
    Future& box = *as<std::unique_ptr<Future>>(future);
    const std::lock_guard lock(box.mutex);
    if (!box.result) return absl::FailedPreconditionError("the future has no value: dtorch_wait has not found one");
    const Result& result = *box.result;
    *value = {result.value.bytes().data(),
              result.value.bytes().size(),
              static_cast<std::int32_t>(result.meta.dtype),
              static_cast<std::int32_t>(result.meta.shape.size()),
              result.meta.shape.data(),
              result.meta.strides.data()};
    *placements = result.placements.c_str();
    return absl::OkStatus();
  });
}

int dtorch_json(dtorch_object* future, const char** text) {
  return guarded([&]() -> absl::Status {
    Future& box = *as<std::unique_ptr<Future>>(future);
    const std::lock_guard lock(box.mutex);
    if (!box.result) return absl::FailedPreconditionError("the future has no value: dtorch_wait has not found one");
    *text = box.result->json.c_str();
    return absl::OkStatus();
  });
}

int dtorch_checker(const char* references, int record, const char* dumps, int dump_when, dtorch_object** out) {
  return guarded([&] {
    *out = wrap(std::make_unique<TensorChecker>(
        dtorch::CheckerOptions{references, record != 0, dumps, static_cast<dtorch::DumpWhen>(dump_when)}));
    return absl::OkStatus();
  });
}

int dtorch_record(dtorch_object* checker, const char* tag, const dtorch_host_tensor* value) {
  return guarded([&] { return as<std::unique_ptr<TensorChecker>>(checker)->record(tag, viewOf(*value)); });
}

int dtorch_check(dtorch_object* checker, const char* tag, const dtorch_host_tensor* value, double rtol, double atol,
                 int equal_nan, dtorch_comparison* out) {
  return guarded([&]() -> absl::Status {
    thread_local dtorch::Comparison last;
    thread_local std::string text;
    absl::StatusOr<dtorch::Comparison> comparison = as<std::unique_ptr<TensorChecker>>(checker)->check(
        tag, viewOf(*value), {.relative = rtol, .absolute = atol, .equalNan = equal_nan != 0});
    if (!comparison.ok()) return comparison.status();
    last = *std::move(comparison);
    text = last.toString();
    *out = {text.c_str(),
            last.problem.c_str(),
            last.actual.c_str(),
            last.expected.c_str(),
            last.firstMismatch.data(),
            last.greatestAt.data(),
            value->dims,
            last.elements,
            last.mismatches,
            last.greatestDifference};
    return absl::OkStatus();
  });
}
}
