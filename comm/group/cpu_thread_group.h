#pragma once
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "comm/exchange/exchange.h"
#include "comm/group/thread_group.h"
#include "core/ids.h"
#include "shm/segment.h"

namespace dtorch {

/// The collectives of CPU tensors between ranks of one host, processes and threads alike, on an Exchange.
class CpuThreadGroup final : public ThreadGroup {
 public:
  /// `segment` holds the group's arena.
  CpuThreadGroup(Segment segment, int rank, std::vector<ProcessWatch> watches, std::shared_ptr<PeerMemory> memory,
                 std::chrono::milliseconds timeout);
  ~CpuThreadGroup() override;

  int rank() const override { return exchange_.self(); }
  int size() const override { return exchange_.size(); }
  GroupBackend backend() const override { return exchange_.backend(); }

  absl::StatusOr<at::Tensor> allReduce(const at::Tensor& input, ReduceOp op, const CallTag& tag) override;
  absl::StatusOr<at::Tensor> allGather(const at::Tensor& input, int dim, const std::vector<std::int64_t>& lengths,
                                       const CallTag& tag) override;
  absl::StatusOr<at::Tensor> reduceScatter(const at::Tensor& input, ReduceOp op, int dim,
                                           const std::vector<std::int64_t>& lengths, const CallTag& tag) override;
  absl::StatusOr<std::vector<at::Tensor>> allToAll(const std::vector<at::Tensor>& inputs,
                                                   const std::vector<std::vector<std::int64_t>>& shapes,
                                                   const CallTag& tag) override;
  absl::StatusOr<at::Tensor> broadcast(const at::Tensor& input, int root, const CallTag& tag) override;
  absl::Status barrier(const CallTag& tag) override;

  void setTimeout(std::chrono::milliseconds timeout) { exchange_.setTimeout(timeout); }

  // The same with the caller's outputs, which may be inputs too, as c10d wants it; shapes matter by their bytes alone.
  /// `root` >= 0: only that rank's output is written, and only there it is looked at.
  absl::Status reduceInto(const at::Tensor& input, const at::Tensor& output, Reduction op, int root,
                          const CallTag& tag);
  /// outputs[r] becomes rank r's input; `root` as above.
  absl::Status gatherInto(const at::Tensor& input, const std::vector<at::Tensor>& outputs, int root,
                          const CallTag& tag);
  /// Every rank's output becomes the root's inputs[rank]; only there are inputs looked at.
  absl::Status scatterInto(const std::vector<at::Tensor>& inputs, const at::Tensor& output, int root,
                           const CallTag& tag);
  /// output becomes the combination of all ranks' inputs[rank].
  absl::Status reduceScatterInto(const std::vector<at::Tensor>& inputs, const at::Tensor& output, Reduction op,
                                 const CallTag& tag);
  absl::Status allToAllInto(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs,
                            const CallTag& tag);
  absl::Status broadcastInto(const at::Tensor& tensor, int root, const CallTag& tag);
  absl::Status fail(const absl::Status& why, const CallTag& tag) override;
  absl::Status broken() const override;
  /// What this rank waits for in its running call.
  std::optional<RankWait> wait() const { return exchange_.lockstep().wait(); }
  void abort(const absl::Status& why) override;

 private:
  struct Views;
  /// Runs `exchange` on contiguous views of the tensors and copies results back to outputs that are not contiguous.
  /// Whatever is wrong before it is told to all ranks.
  template <typename Exchange>
  absl::Status run(Call call, const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs,
                   Exchange exchange);
  /// Tells the other ranks of an error that only this rank may have found, so that none waits for it.
  absl::Status failWith(const absl::Status& why, const Call& call);
  /// This rank's own reason where it aborted, else `status`.
  absl::Status ended(const absl::Status& status);

  Segment segment_;
  Exchange exchange_;
  std::mutex mutex_;
  absl::Status aborted_;  // guarded by mutex_
};

}  // namespace dtorch
