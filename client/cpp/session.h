#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/cpp/future.h"
#include "client/cpp/host_tensor.h"
#include "client/cpp/mesh.h"
#include "client/cpp/operator_error.h"
#include "client/cpp/site.h"
#include "client/cpp/tensor.h"
#include "core/ids.h"
#include "core/placement.h"

namespace dtorch {

class Connection;
class SessionCore;

struct ConnectOptions {
  std::string address = {};  // "unix:/run/dtorch/dtorchd.sock", a path, or "host:port"; empty: defaultAddress()
  std::chrono::steady_clock::duration timeout = std::chrono::seconds(5);
  std::string name = {};  // of this program, for dtorchctl
  /// The program waits for synchronize() after each call. An in-place call that is refused has then changed nothing;
  /// else the tensors that it was to write to fail, since later calls are on their way that read them.
  bool sync = false;
  /// Workers check what the kernels of this session read and write (docs/numerics.md). For finding faults, not for
  /// speed.
  bool validate = false;
};

/// A connection to dtorchd and the tensors made over it. Operators are sent in batches and nothing waits for the daemon
/// but a future; only when it falls far behind (2,048 commands or 8 MiB of tensor data) do calls block until it caught
/// up. When the session is destroyed, what was called is still sent, and the daemon then forgets all its tensors;
/// Tensors and Futures that are left fail. Thread: safe; calls of one thread keep their order. Errors: calls do not
/// fail, the futures of what they return do.
class Session {
 public:
  /// UNAVAILABLE: no daemon there; DEADLINE_EXCEEDED; FAILED_PRECONDITION: another version of the protocol.
  static absl::StatusOr<std::shared_ptr<Session>> connect(ConnectOptions options = {});
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  std::int32_t worldSize() const { return worldSize_; }
  SessionId id() const { return id_; }
  std::int64_t daemonPid() const { return daemonPid_; }
  const std::string& daemonVersion() const { return daemonVersion_; }

  /// All workers, in one dimension.
  const Mesh& mesh() const { return world_; }
  /// Some of them, in the given order; `shape` empty: one dimension. INVALID_ARGUMENT says what is wrong with it.
  absl::StatusOr<Mesh> mesh(std::vector<Rank> ranks, std::vector<std::int64_t> shape = {},
                            std::vector<std::string> names = {});

  /// Makes a tensor of `value`, which is copied before this returns. One placement for each mesh dimension; none: all
  /// Replicate. Partial(sum) puts the value on the first coordinate and zeros elsewhere.
  Tensor put(const HostView& value, const Mesh& mesh, Placements placements = {}, const TransferOptions& options = {},
             Site site = std::source_location::current());
  /// Makes a tensor of global `shape` from what each rank shall hold, in mesh order; for Partial these are the
  /// summands.
  Tensor putShards(absl::Span<const HostView> parts, std::vector<std::int64_t> shape, const Mesh& mesh,
                   Placements placements, const TransferOptions& options = {},
                   Site site = std::source_location::current());

  /// As the free functions of tensor.h, and for operators without tensor arguments.
  Tensor call(absl::string_view name, absl::Span<const Argument> arguments, const CallOptions& options = {},
              Site site = std::source_location::current());
  std::vector<Tensor> callMany(absl::string_view name, absl::Span<const Argument> arguments, std::uint32_t outputs,
                               const CallOptions& options = {}, Site site = std::source_location::current());

  /// How a call would be placed, without running it: a v1.Explanation (client.proto) as JSON, with the rule's rows, the
  /// candidates with their collectives, bytes and estimated times, and which of them would be taken.
  Future<std::string> explain(absl::string_view name, absl::Span<const Argument> arguments, std::uint32_t outputs = 1,
                              const CallOptions& options = {}, Site site = std::source_location::current());
  /// The operators that have a placement rule: a v1.RuleList as JSON.
  Future<std::string> rules();
  /// A placement rule of an operator of an operator library, as docs/rules.md says, for this session.
  Future<void> declareRule(absl::string_view name, absl::string_view rule);
  /// What has been redistributed so far, of calls with CallOptions::implicit and by Tensor::redistribute: a
  /// v1.RedistributionList as JSON. `forget`: the next list begins anew.
  Future<std::string> redistributions(bool forget = false);

  /// Resolves when everything before it has run, with the first error that no other future has told of.
  Future<void> synchronize();
  /// Cancels what was called so far and is not done: futures that wait for it fail with CANCELLED, its results have no
  /// value, nor have tensors that it was to write to. What runs is not waited for, what has not begun is dropped.
  /// Returns when the daemon knows. UNAVAILABLE, DEADLINE_EXCEEDED: it does not answer.
  absl::Status cancel();
  /// Resolves when all workers are up. After the loss of one, tensors can be put and operators called on its meshes
  /// from then on, in this session. ABORTED: a worker was lost too often, and none is started in its place.
  Future<void> awaitWorkers();

 private:
  Session() = default;
  std::shared_ptr<SessionCore> core_;
  std::unique_ptr<Connection> connection_;
  std::uint64_t cancelToken_ = 0;
  Mesh world_;
  std::int32_t worldSize_ = 0;
  SessionId id_ = 0;
  std::int64_t daemonPid_ = 0;
  std::string daemonVersion_;
};

}  // namespace dtorch
