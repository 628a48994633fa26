#include "tests/worker/running_workers.h"

#include <ATen/ops/empty.h>
#include <spdlog/spdlog.h>

#include <cstring>
#include <stdexcept>

#include "dispatch/dtype.h"
#include "proto/codec.h"
#include "shm/segment.h"

namespace dtorch {

RunningWorkers::RunningWorkers(int count, WorkerDriver::Transport transport, const std::string& supervisor)
    : driver_(transport) {
  spdlog::set_level(spdlog::level::warn);
  std::vector<Rank> ranks;
  for (Rank rank = 0; rank < count; ++rank) {
    WorkerOptions options;
    options.rank = rank;
    options.worldSize = count;
    options.frameEndpoint = driver_.frameEndpoint();
    options.reportEndpoint = driver_.reportEndpoint();
    options.supervisorTarget = supervisor;
    options.heartbeatInterval = std::chrono::milliseconds(20);
    options.commTimeout = std::chrono::seconds(20);
    auto worker = Worker::start(options, transport == WorkerDriver::Transport::kInproc ? &driver_.context() : nullptr);
    if (!worker.ok()) throw std::runtime_error(std::string(worker.status().message()));
    workers_.push_back(*std::move(worker));
    ranks.push_back(rank);
  }
  driver_.awaitWorkers(ranks);
  driver_.join(kAll, ranks);
}

at::Tensor RunningWorkers::fetch(Rank rank, OperandId operand) {
  const v1::FetchedValue value = driver_.fetch(kAll, rank, operand);
  if (value.has_error()) throw std::runtime_error(value.error().message());
  return valueOf(value);
}

v1::Status RunningWorkers::fetchError(Rank rank, OperandId operand) {
  return driver_.fetch(kAll, rank, operand).error();
}

v1::WorkerCommand RunningWorkers::put(OperandId operand, const at::Tensor& tensor, const Placements& placements) const {
  return upload(operand, mesh(), metaOf(tensor), placements, bytesOf(tensor));
}

TensorMeta metaOf(const at::Tensor& tensor) {
  return *makeMeta(*fromTorch(tensor.scalar_type()), tensor.sizes().vec());
}

std::string bytesOf(const at::Tensor& tensor) {
  const at::Tensor contiguous = tensor.contiguous();
  return {static_cast<const char*>(contiguous.data_ptr()), contiguous.nbytes()};
}

at::Tensor valueOf(const v1::FetchedValue& value) {
  const absl::StatusOr<TensorMeta> meta = fromWire(value.meta());
  if (!meta.ok()) throw std::runtime_error("a value without metadata");
  at::Tensor tensor = at::empty(meta->shape, toTorch(meta->dtype));
  const auto bytes = static_cast<std::size_t>(meta->bytes());
  if (!value.has_segment()) {
    if (value.inline_bytes().size() != bytes) throw std::runtime_error("a value of the wrong size");
    // Nothing may have no address, which memcpy does not take.
    if (bytes > 0) std::memcpy(tensor.data_ptr(), value.inline_bytes().data(), bytes);
    return tensor;
  }
  const v1::SegmentRef& ref = value.segment();
  const absl::StatusOr<Segment> segment = Segment::open({ref.pid(), ref.fd(), ref.inode(), ref.bytes()});
  if (!segment.ok()) throw std::runtime_error(std::string(segment.status().message()));
  std::memcpy(tensor.data_ptr(), segment->data(), bytes);
  return tensor;
}

v1::Plan addPlan(PlanId id, const DeviceMesh& mesh) {
  v1::Plan plan = makePlan(id, mesh, 2, "aten::add.Tensor");
  addKernel(plan, "aten::add.Tensor", {TensorArg{0}, TensorArg{1}, 1});
  plan.add_outputs(2);
  return plan;
}

}  // namespace dtorch
