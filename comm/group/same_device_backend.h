#pragma once
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "comm/group/cpu_thread_group.h"
#include "comm/group/point_to_point.h"
#include "comm/group/thread_group_manager.h"

namespace dtorch {

/// A torch.distributed backend for ranks of one host that share a device: CPU processes, and threads. Calls run in the
/// order in which they are made; one that is not asynchronous runs on the caller's thread when nothing is before it.
/// Sends and receives go beside them, in any order.
///
/// Thread: safe. Owns: two threads, "dtorch-comm" and "dtorch-p2p".
/// Errors: c10::ValueError for INVALID_ARGUMENT, c10::DistBackendError for the rest, thrown by Work::wait() of all
/// ranks:
///   a call that one of them cannot make fails on the others too.
class SameDeviceBackend final : public c10d::Backend {
 public:
  /// All ranks meet through `store`. Throws c10::DistBackendError when they do not.
  static c10::intrusive_ptr<SameDeviceBackend> create(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                      std::chrono::milliseconds timeout);
  ~SameDeviceBackend() override;

  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  const std::string getBackendName() const override { return "dtorch"; }
  /// What this object's calls between the two start is one work, done when all of it is, and failed with the first
  /// error. Each of them runs as it would by itself, so that one may also be waited for in between.
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& outputSplits,
                        std::vector<std::int64_t>& inputSplits, const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  /// Its work's sourceRank() tells who sent.
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override;
  /// Ends running and waiting calls of all ranks.
  void abort() override;
  void shutdown() override { abort(); }

 private:
  class CallWork;
  using Call = std::function<absl::Status(CpuThreadGroup&)>;
  struct Job {
    c10::intrusive_ptr<CallWork> work;
    Call call;
    std::chrono::milliseconds timeout;
  };

  SameDeviceBackend(int rank, int size, std::chrono::milliseconds timeout, std::unique_ptr<ThreadGroupManager> manager,
                    CpuThreadGroup& group, std::unique_ptr<PointToPoint> pointToPoint);
  WorkPtr receive(Tensors& tensors, std::optional<Rank> from, int tag);
  WorkPtr submit(c10d::OpType type, Tensors outputs, std::chrono::milliseconds timeout, bool async, Call call);
  c10::intrusive_ptr<CallWork> newWork(c10d::OpType type, Tensors outputs);
  std::chrono::milliseconds timeout();
  void run(Job& job);
  void loop();

  std::chrono::milliseconds timeout_;
  std::unique_ptr<ThreadGroupManager> manager_;
  CpuThreadGroup& group_;
  const std::unique_ptr<PointToPoint> pointToPoint_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  /// A job runs, on this object's thread or on a caller's.
  bool busy_ = false;
  bool stopping_ = false;
  std::uint64_t submitted_ = 0;
  /// Of the calls since startCoalescing().
  std::optional<std::vector<c10::intrusive_ptr<CallWork>>> coalesced_;
  std::thread thread_;
};

}  // namespace dtorch
