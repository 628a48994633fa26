#pragma once
#include <memory>
#include <mutex>
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
  CpuThreadGroup(Segment segment, int rank, std::vector<ProcessWatch> watches, std::chrono::milliseconds timeout);
  ~CpuThreadGroup() override;

  int rank() const override { return exchange_.self(); }
  int size() const override { return exchange_.size(); }

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
  absl::Status fail(const absl::Status& why, const CallTag& tag) override;
  void abort(const absl::Status& why) override;

 private:
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
