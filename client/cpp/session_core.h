#pragma once
#include <atomic>
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
#include "client/cpp/fork.h"
#include "client/cpp/future_state.h"
#include "client/cpp/host_tensor.h"
#include "client/cpp/mesh.h"
#include "client/cpp/site.h"
#include "client/cpp/tensor.h"
#include "comm/future/snapshot.h"
#include "core/ids.h"
#include "shm/segment_pool.h"

namespace dtorch {

/// A session without its connection: turns calls into commands, and answers into futures. Shared by the Session, its
/// tensors and futures; outlives the connection. Of no use in a forked child: all calls fail there, without a lock.
/// Thread: safe; onResult by one thread at a time.
class SessionCore : public std::enable_shared_from_this<SessionCore> {
 public:
  explicit SessionCore(CommandQueue::Limits limits = {}) : queue_(limits) {}

  /// The process was forked from the one whose session this is: nothing of it may be used, nor destroyed.
  bool isParents() const { return forkDepth() != forkDepth_; }

  // For the connection.
  CommandQueue& queue() { return queue_; }
  void onResult(const v1::FutureResult& result);
  /// A large value that a result's ticket was for; an error: it cannot be had so, and is asked for as bytes. Any
  /// thread.
  void onValue(FutureId future, const SnapshotOr& value);
  /// Whether large values may come as tickets.
  void useTickets(bool use) { byTicket_.store(use, std::memory_order_relaxed); }
  /// Puts may name segments of this process.
  void lendSegments(bool lend) {
    const std::lock_guard lock(mutex_);
    lends_ = lend;
  }
  /// The segment of that put is free again.
  void onPutTaken(TensorId tensor);
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
             const Placements& placements, const TransferOptions& options, Site site);
  std::shared_ptr<FutureState> synchronize();
  std::shared_ptr<FutureState> awaitWorkers();
  /// Marks the place up to which calls are cancelled; the mark's serial number.
  std::uint64_t cancelCalls();
  std::shared_ptr<FutureState> explain(absl::string_view name, absl::Span<const Argument> arguments,
                                       std::uint32_t outputs, const CallOptions& options, const Mesh& world, Site site);
  std::shared_ptr<FutureState> rules();
  std::shared_ptr<FutureState> redistributions(bool forget);
  std::shared_ptr<FutureState> declareRule(absl::string_view name, absl::string_view rule);
  /// As a gradient: see Tensor::redistributeAsGradientOf.
  struct GradientOf {
    Tensor tensor = {};  // not defined: it is none
    bool share = false;
  };
  static Tensor redistribute(const Tensor& tensor, const Placements& placements, const GradientOf& gradient,
                             const TransferOptions& options, Site site);
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
  /// What a large put has in all, in memory that can be lent; null: its bytes are to be sent.
  std::shared_ptr<Segment> lendableCopy(absl::Span<const HostView> parts, std::size_t bytes);

  /// What is put beyond is sent, as fast as the daemon takes it.
  static constexpr std::size_t kMaxLentBytes = std::size_t{1} << 30;
  static constexpr std::size_t kIdleBytes = 256 << 20;

  const int forkDepth_ = forkDepth();
  CommandQueue queue_;
  // Guarded by queue_'s Appender: their order is the commands' order.
  TemplateTable templates_;
  SiteTable sites_;
  TensorId nextTensor_ = 1;
  FutureId nextFuture_ = 1;
  std::uint64_t lastCancel_ = 0;

  std::atomic<bool> byTicket_ = false;

  std::mutex putMutex_;  // puts do not interleave

  std::mutex mutex_;  // taken after the Appender, if both are
  absl::Status cause_;
  absl::flat_hash_map<FutureId, std::weak_ptr<FutureState>> futures_;
  std::vector<std::shared_ptr<const Mesh::Data>> meshes_;  // mesh i + 1
  bool lends_ = false;
  absl::flat_hash_map<TensorId, std::shared_ptr<Segment>> lent_;  // by the puts that they are read for
  std::size_t lentBytes_ = 0;

  SegmentPool pool_{kIdleBytes};
};

}  // namespace dtorch
