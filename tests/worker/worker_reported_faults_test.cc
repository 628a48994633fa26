// Faults that users of peer systems reported, each by the number of its issue, on workers without a daemon.
#include <ATen/ATen.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/catch.h"
#include "tests/worker/running_workers.h"

namespace dtorch {
namespace {
const Placement kR = Placement::replicate();
const Placement kS0 = Placement::shard(0);

/// `parts`, one for each rank, as the parts of a tensor of `shape` sharded along its first dimension.
v1::WorkerCommand uploadParts(OperandId operand, const DeviceMesh& mesh, const std::vector<std::int64_t>& shape,
                              const std::vector<at::Tensor>& parts) {
  std::string bytes;
  for (const at::Tensor& part : parts) bytes += bytesOf(part);
  v1::WorkerCommand command = upload(operand, mesh, *makeMeta(DType::kFloat32, shape), {kS0}, bytes);
  command.mutable_upload()->set_parts(true);
  for (const at::Tensor& part : parts) {
    command.mutable_upload()->add_part_shapes()->mutable_values()->Add(part.sizes().begin(), part.sizes().end());
  }
  return command;
}

/// Output = input, from `from` to all of it everywhere.
v1::Plan gatherPlan(PlanId id, const DeviceMesh& mesh, const std::vector<std::int64_t>& shape, const Placement& from) {
  v1::Plan plan = makePlan(id, mesh, 1, "redistribute");
  addConvert(plan, 0, shape, {from}, {kR});
  addOutput(plan, 1, *makeMeta(DType::kFloat32, shape), {kR});
  return plan;
}

/// The largest or smallest of all elements, of local ones first.
v1::Plan extremePlan(PlanId id, const DeviceMesh& mesh, const std::string& op) {
  const bool isMax = op.find("max") != std::string::npos;
  v1::Plan plan = makePlan(id, mesh, 1, op);
  if (op == "aten::amax" || op == "aten::amin") {
    addKernel(plan, op, {TensorArg{0}, std::vector<std::int64_t>{}, false});
  } else {
    addKernel(plan, op, {TensorArg{0}});
  }
  addConvert(plan, 1, {}, {Placement::partial(isMax ? ReduceOp::kMax : ReduceOp::kMin)}, {kR});
  addOutput(plan, 2, *makeMeta(DType::kFloat32, {}), {kR});
  return plan;
}
}  // namespace

TEST_CASE("NaN is the largest and the smallest, wherever it lies") {  // ml-explore/mlx#4072, tvm#19518
  RunningWorkers workers(GENERATE(2, 4));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  PlanId plan = 1;
  OperandId operand = 100;
  for (const char* op : {"aten::max", "aten::min", "aten::amax", "aten::amin"}) {
    workers.send({define(extremePlan(plan, workers.mesh(), op))});
    for (int position = -1; position < 4; ++position) {
      INFO(op << ", NaN at " << position);
      const at::Tensor x = at::tensor({1.0F, 2.0F, 5.0F, 3.0F});
      if (position >= 0) x[position] = nan;
      workers.send({workers.put(operand, x, {kS0}), run(plan, {operand}, operand + 1)});
      const float plain = std::string(op).find("max") != std::string::npos ? 5 : 1;
      for (Rank rank = 0; rank < workers.count(); ++rank) {
        const auto got = workers.fetch(rank, operand + 1).item<float>();
        CHECK((position < 0 ? got == plain : std::isnan(got)));
      }
      operand += 2;
    }
    ++plan;
  }
}

TEST_CASE("a product over nothing leaves the bias") {  // pytorch#117728
  RunningWorkers workers(2);
  v1::Plan plan = makePlan(1, workers.mesh(), 3, "aten::addmm");
  addKernel(plan, "aten::addmm", {TensorArg{0}, TensorArg{1}, TensorArg{2}, 1, 1});
  addConvert(plan, 3, {12, 4}, {kS0}, {kR});
  addOutput(plan, 4, *makeMeta(DType::kFloat32, {12, 4}), {kR});
  workers.send({workers.put(1, at::arange(4, at::kFloat), {kR}), workers.put(2, at::empty({12, 0}), {kS0}),
                workers.put(3, at::empty({0, 4}), {kR}), define(plan), run(1, {1, 2, 3}, 4)});
  for (const Rank rank : {0, 1}) {
    CHECK(at::equal(workers.fetch(rank, 4), at::arange(4, at::kFloat).expand({12, 4})));
  }
}

TEST_CASE("a tensor without elements keeps its shape on all ways") {  // pytorch#85234, gloo#179, pytorch#150928
  RunningWorkers workers(2);
  const at::Tensor empty = at::empty({1, 0, 2});
  PlanId plan = 1;
  OperandId operand = 10;
  for (const Placement& from : {kR, kS0, Placement::shard(1), Placement::shard(2), Placement::partial()}) {
    INFO(from.toString());
    workers.send({workers.put(operand, empty, {from}), define(gatherPlan(plan, workers.mesh(), {1, 0, 2}, from)),
                  run(plan, {operand}, operand + 1)});
    for (const Rank rank : {0, 1}) CHECK(workers.fetch(rank, operand + 1).sizes() == empty.sizes());
    ++plan;
    operand += 2;
  }
}

TEST_CASE("one element among four ranks is gathered") {  // pytorch#117728
  RunningWorkers workers(4);
  workers.send(
      {workers.put(1, at::full({1}, 5.0F), {kS0}), define(gatherPlan(1, workers.mesh(), {1}, kS0)), run(1, {1}, 2)});
  for (Rank rank = 0; rank < 4; ++rank) {
    CHECK(workers.fetch(rank, 1).numel() == (rank == 0 ? 1 : 0));
    CHECK(at::equal(workers.fetch(rank, 2), at::full({1}, 5.0F)));
  }
}

TEST_CASE("parts of unequal size are one tensor everywhere, shifted ones are none") {  // pytorch#110762, pytorch#144109
  RunningWorkers workers(4);
  const at::Tensor whole = at::arange(20, at::kFloat).view({10, 2});
  workers.send({uploadParts(1, workers.mesh(), {10, 2}, whole.split(3)),
                define(gatherPlan(1, workers.mesh(), {10, 2}, kS0)), run(1, {1}, 2)});
  for (Rank rank = 0; rank < 4; ++rank) {
    CHECK(at::equal(workers.fetch(rank, 1), whole.split(3)[static_cast<std::size_t>(rank)]));
    CHECK(at::equal(workers.fetch(rank, 2), whole));
  }
  workers.send({uploadParts(3, workers.mesh(), {14, 2}, at::zeros({14, 2}).split_with_sizes({2, 3, 4, 5})),
                define(gatherPlan(2, workers.mesh(), {14, 2}, kS0)), run(2, {3}, 4)});
  for (Rank rank = 0; rank < 4; ++rank) {
    CHECK_THAT(workers.fetchError(rank, 4).message(), Catch::Contains("where its placement says"));
  }
}

TEST_CASE("a gathered uneven tensor has the strides of a whole one") {  // pytorch#173041, pytorch#118836
  RunningWorkers workers(2);
  const at::Tensor whole = at::arange(1240, at::kFloat).view({4, 31, 10});
  const at::Tensor weight = at::arange(30, at::kFloat).view({3, 10});
  v1::Plan strides = makePlan(2, workers.mesh(), 1, "aten::view");  // of other strides it is an error
  addKernel(strides, "aten::view", {TensorArg{0}, std::vector<std::int64_t>{-1}});
  strides.add_outputs(1);
  v1::Plan linear = makePlan(3, workers.mesh(), 2, "aten::linear");
  addKernel(linear, "aten::linear", {TensorArg{0}, TensorArg{1}, Value()});
  linear.add_outputs(2);
  const Placement columns = Placement::shard(1);
  workers.send({workers.put(1, whole, {columns}), workers.put(2, weight, {kR}),
                workers.put(3, at::arange(27, at::kFloat).view({3, 9}), {columns}), define(strides), define(linear),
                define(gatherPlan(1, workers.mesh(), {4, 31, 10}, columns)), run(1, {1}, 10), run(2, {10}, 11),
                run(3, {10, 2}, 12), run(2, {3}, 13)});
  for (const Rank rank : {0, 1}) {
    CHECK(at::equal(workers.fetch(rank, 11), whole.view({-1})));
    CHECK(at::allclose(workers.fetch(rank, 12), at::linear(whole, weight)));
    CHECK(workers.fetch(rank, 13).numel() == (rank == 0 ? 15 : 12));
  }
}

TEST_CASE("a part of a wrong shape fails a collective on all ranks, and no later one") {  // nccl#1417, pytorch#174844
  RunningWorkers workers(2);
  const auto alone = [](Rank rank) { return *DeviceMesh::create(DeviceType::kCpu, {1}, {rank}); };
  const at::Tensor two = at::ones({2});
  const at::Tensor four = at::ones({4});
  v1::Plan sum = makePlan(1, workers.mesh(), 1, "aten::sum");
  addConvert(sum, 0, {2}, {Placement::partial()}, {kR});
  addOutput(sum, 1, *makeMeta(DType::kFloat32, {2}), {kR});
  // One operand, of another shape on rank 1, as no planner would make it.
  const OperatorNumber bad =
      workers.send({upload(1, alone(0), metaOf(two), {kR}, bytesOf(two)),
                    upload(1, alone(1), metaOf(four), {kR}, bytesOf(four)), define(sum), run(1, {1}, 2)});
  const auto start = std::chrono::steady_clock::now();
  for (const Rank rank : {0, 1}) {
    const std::string message = workers.fetchError(rank, 2).message();
    for (const char* part : {"aten::sum", "rank 1", "[2]", "[4]"}) CHECK_THAT(message, Catch::Contains(part));
    CHECK_THAT(workers.driver().awaitFailure(rank, bad).error().message(), Catch::Contains("[4]"));
  }
  workers.send({workers.put(3, at::ones({2}), {Placement::partial()}), run(1, {3}, 4)});
  for (const Rank rank : {0, 1}) CHECK(at::equal(workers.fetch(rank, 4), at::ones({2})));
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
}

}  // namespace dtorch
