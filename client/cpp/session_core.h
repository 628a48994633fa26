#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/cpp/call_tables.h"
#include "client/cpp/command_queue.h"
#include "client/cpp/future_state.h"
#include "client/cpp/host_tensor.h"
#include "client/cpp/mesh.h"
#include "client/cpp/site.h"
#include "client/cpp/tensor.h"
#include "core/ids.h"

namespace dtorch {

/// A session without its connection: turns calls into commands, and answers into futures. Shared by the Session, its
/// tensors and futures; outlives the connection.
/// Thread: safe; onResult by one thread at a time.
class SessionCore : public std::enable_shared_from_this<SessionCore> {
 public:
  explicit SessionCore(CommandQueue::Limits limits = {}) : queue_(limits) {}

  // For the connection.
  CommandQueue& queue() { return queue_; }
  void onResult(const v1::FutureResult& result);
  /// The connection is over: fails all futures, now and later, with `cause`. The first cause stays.
  void end(absl::Status cause);

  // For Session and Tensor. Placements empty: all Replicate.
  absl::StatusOr<Mesh> mesh(const DeviceMesh& device);
  std::vector<Tensor> call(absl::string_view name, absl::Span<const Argument> arguments, std::uint32_t outputs,
                           const CallOptions& options, const Mesh& world, Site site);
  /// As call() with one output, without a vector.
  Tensor callOne(absl::string_view name, absl::Span<const Argument> arguments, const CallOptions& options,
                 const Mesh& world, Site site);
  /// `parts`: the whole tensor if `whole`, else what each rank of the mesh holds.
  Tensor put(absl::Span<const HostView> parts, bool whole, TensorMeta global, const Mesh& mesh,
             const Placements& placements, Site site);
  std::shared_ptr<FutureState> synchronize();
  std::shared_ptr<FutureState> explain(absl::string_view name, absl::Span<const Argument> arguments,
                                       std::uint32_t outputs, const CallOptions& options, const Mesh& world, Site site);
  std::shared_ptr<FutureState> rules();
  std::shared_ptr<FutureState> redistributions();
  std::shared_ptr<FutureState> declareRule(absl::string_view name, absl::string_view rule);
  static Tensor redistribute(const Tensor& tensor, const Placements& placements, Site site);
  static std::shared_ptr<FutureState> get(const Tensor& tensor, bool local, Rank rank);
  static std::shared_ptr<FutureState> describe(const Tensor& tensor);
  /// The session that a call belongs to: its first tensor's. nullptr if there is none.
  static SessionCore* sessionOf(absl::Span<const Argument> arguments);
  /// The result of a call for which sessionOf() found nothing.
  static Tensor withoutSession(absl::string_view name, absl::Span<const Argument> arguments, Site site);
  static Tensor failed(absl::string_view what, Site site, const absl::Status& status);

  // For tensors and futures that go. Never wait.
  void release(TensorId tensor);
  void cancel(FutureId future);
  void flush() { queue_.flush(); }

 private:
  /// The first output's id. With a future's number, the call is explained instead of run.
  absl::StatusOr<TensorId> submit(absl::string_view name, absl::Span<const Argument> arguments, std::uint32_t outputs,
                                  const CallOptions& options, const Mesh& world, Site site, FutureId explained = 0);
  /// Known to onResult() from now on. With the Appender held.
  std::shared_ptr<FutureState> newFuture(FutureState::Kind kind, FutureId id);
  absl::Status meshError(const Mesh& mesh) const;
  void setSite(CommandQueue::Appender& commands, Site site, std::uint32_t& number);
  Tensor make(TensorId id);
  template <typename Fill>
  std::shared_ptr<FutureState> request(FutureState::Kind kind, const Fill& fill);
  Mesh meshOf(std::uint32_t id);

  CommandQueue queue_;
  // Guarded by queue_'s Appender: their order is the commands' order.
  TemplateTable templates_;
  SiteTable sites_;
  TensorId nextTensor_ = 1;
  FutureId nextFuture_ = 1;

  std::mutex putMutex_;  // puts do not interleave

  std::mutex mutex_;  // taken after the Appender, if both are
  absl::Status cause_;
  absl::flat_hash_map<FutureId, std::weak_ptr<FutureState>> futures_;
  std::vector<std::shared_ptr<const Mesh::Data>> meshes_;  // mesh i + 1
};

}  // namespace dtorch
