#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "dtorch/v1/worker.pb.h"
#include "tests/worker/worker_driver.h"
#include "worker/worker.h"

namespace dtorch {

/// Workers in threads of this process, driven by the test; group 1 holds them all.
class RunningWorkers {
 public:
  static constexpr GroupId kAll = 1;
  /// `supervisor`: gRPC target of the heartbeats; empty: none.
  explicit RunningWorkers(int count, WorkerDriver::Transport transport = WorkerDriver::Transport::kInproc,
                          const std::string& supervisor = "");

  WorkerDriver& driver() { return driver_; }
  Worker& worker(Rank rank) { return *workers_[static_cast<std::size_t>(rank)]; }
  int count() const { return static_cast<int>(workers_.size()); }
  DeviceMesh mesh() const { return cpuMesh({count()}); }

  OperatorNumber send(const std::vector<v1::WorkerCommand>& commands) { return driver_.send(kAll, commands); }
  /// The local tensor of `operand` on `rank`; its error is an exception.
  at::Tensor fetch(Rank rank, OperandId operand);
  /// The error that `operand` holds on `rank`.
  v1::Status fetchError(Rank rank, OperandId operand);
  /// Makes `operand` of the whole of `tensor`.
  v1::WorkerCommand put(OperandId operand, const at::Tensor& tensor, const Placements& placements) const;

 private:
  WorkerDriver driver_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

TensorMeta metaOf(const at::Tensor& tensor);
std::string bytesOf(const at::Tensor& tensor);
at::Tensor valueOf(const v1::FetchedValue& value);

/// Plan `id`: output = aten::add(input 0, input 1) on local tensors.
v1::Plan addPlan(PlanId id, const DeviceMesh& mesh);

}  // namespace dtorch
