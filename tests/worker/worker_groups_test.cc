// Several workers: conversions between them, and what happens when one of them fails.
#include <ATen/ATen.h>

#include <random>

#include "tests/catch.h"
#include "tests/worker/running_workers.h"

namespace dtorch {
namespace {
const Placement kR = Placement::replicate();
const Placement kS0 = Placement::shard(0);
const Placement kS1 = Placement::shard(1);
const Placement kPartial = Placement::partial();
constexpr GroupId kAll = RunningWorkers::kAll;

v1::Plan convertPlan(PlanId id, const DeviceMesh& mesh, const std::vector<std::int64_t>& shape, const Placement& from,
                     const Placement& to) {
  v1::Plan plan = makePlan(id, mesh, 1, "redistribute");
  addConvert(plan, 0, shape, {from}, {to});
  addOutput(plan, 1, *makeMeta(DType::kFloat32, shape), {to});
  return plan;
}
}  // namespace

TEST_CASE("a tensor keeps its value through every conversion") {
  RunningWorkers workers(GENERATE(2, 3));
  const at::Tensor x = at::rand({5, 4});
  PlanId plan = 1;
  OperandId operand = 100;
  for (const Placement& from : {kR, kS0, kS1, kPartial}) {
    for (const Placement& to : {kR, kS0, kS1}) {
      INFO(from.toString() << " to " << to.toString());
      const v1::Plan there = convertPlan(plan, workers.mesh(), {5, 4}, from, to);
      const v1::Plan gather = convertPlan(plan + 1, workers.mesh(), {5, 4}, to, kR);
      workers.send({workers.put(operand, x, {from}), define(there), define(gather), run(plan, {operand}, operand + 1),
                    run(plan + 1, {operand + 1}, operand + 2)});
      for (Rank rank = 0; rank < workers.count(); ++rank) {
        CHECK(at::allclose(workers.fetch(rank, operand + 2), x));
      }
      plan += 2;
      operand += 3;
    }
  }
}

TEST_CASE("a plan may convert its inputs, compute and convert its output") {
  RunningWorkers workers(2);
  const at::Tensor a = at::rand({5, 3});
  const at::Tensor b = at::rand({3, 4});
  v1::Plan plan = makePlan(1, workers.mesh(), 2, "aten::mm");
  addConvert(plan, 0, {5, 3}, {kS0}, {kS1});                  // slot 2
  addConvert(plan, 1, {3, 4}, {kS1}, {kS0});                  // slot 3
  addKernel(plan, "aten::mm", {TensorArg{2}, TensorArg{3}});  // slot 4, Partial
  addConvert(plan, 4, {5, 4}, {kPartial}, {kR});              // slot 5
  addOutput(plan, 5, *makeMeta(DType::kFloat32, {5, 4}), {kR});
  workers.send({workers.put(1, a, {kS0}), workers.put(2, b, {kS1}), define(plan), run(1, {1, 2}, 3)});
  for (const Rank rank : {0, 1}) CHECK(at::allclose(workers.fetch(rank, 3), at::mm(a, b)));
}

TEST_CASE("a cast and conversions of what it gives are one plan") {
  RunningWorkers workers(3);
  const at::Tensor x = at::rand({5, 4});
  v1::Plan plan = makePlan(1, workers.mesh(), 1, "aten::_to_copy");
  addKernel(plan, "aten::_to_copy", {TensorArg{0}, DType::kFloat64, Value(), Value(), Value(), false, Value()});
  addConvert(plan, 1, {5, 4}, {kS0}, {kS1});
  addConvert(plan, 2, {5, 4}, {kS1}, {kR});
  addOutput(plan, 3, *makeMeta(DType::kFloat64, {5, 4}), {kR});
  workers.send({workers.put(1, x, {kS0}), define(plan), run(1, {1}, 2)});
  for (Rank rank = 0; rank < 3; ++rank) CHECK(at::equal(workers.fetch(rank, 2), x.to(at::kDouble)));
}

TEST_CASE("WORKER-1: kernels, conversions and in-place operators in random order give LibTorch's result") {
  const unsigned seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  RunningWorkers workers(2);
  const DeviceMesh mesh = workers.mesh();
  const at::Tensor x = at::rand({6, 4}, at::kDouble);
  v1::Plan sum = makePlan(1, mesh, 1, "redistribute");  // R to P, then P to R: the same value through both streams
  addConvert(sum, 0, {6, 4}, {kPartial}, {kR});
  sum.add_outputs(1);
  v1::Plan halve = makePlan(2, mesh, 1, "aten::mul_.Scalar");
  addKernel(halve, "aten::mul_.Scalar", {TensorArg{0}, 0.5}, 1, true);
  halve.add_outputs(1);
  v1::Plan add = addPlan(3, mesh);
  // Operands 1.. hold equal tensors on both ranks, so that the sum over ranks doubles.
  std::vector<at::Tensor> expected{at::Tensor(), x.clone(), x.clone()};
  std::vector<v1::WorkerCommand> commands{define(sum), define(halve), define(add), workers.put(1, x, {kR}),
                                          workers.put(2, x, {kR})};
  for (int i = 0; i < 300; ++i) {
    const OperandId first = 1 + random() % (expected.size() - 1);
    const OperandId second = 1 + random() % (expected.size() - 1);
    const OperandId output = expected.size();
    switch (random() % 4) {
      case 0:
        commands.push_back(run(1, {first}, output));
        expected.push_back(expected[first] * 2);
        break;
      case 1:
        commands.push_back(run(2, {first}, output));
        expected[first].mul_(0.5);
        expected.push_back(expected[first]);
        break;
      default:
        commands.push_back(run(3, {first, second}, output));
        expected.push_back(expected[first] + expected[second]);
    }
    if (commands.size() > 20) {
      workers.send(commands);
      commands.clear();
    }
  }
  workers.send(commands);
  for (OperandId id = 1; id < expected.size(); id += 7) {
    for (const Rank rank : {0, 1}) CHECK(at::equal(workers.fetch(rank, id), expected[id]));
  }
}

TEST_CASE("an error on one rank reaches its peers through a conversion, and the group goes on") {
  RunningWorkers workers(2);
  const DeviceMesh mesh = workers.mesh();
  // Uneven shards: adding the rows of rank 0 (3) to themselves works, on rank 1 (2 rows) a reshape to 3 rows fails.
  v1::Plan reshape = makePlan(1, mesh, 1, "aten::reshape");
  addKernel(reshape, "aten::reshape", {TensorArg{0}, std::vector<std::int64_t>{3, 4}});
  reshape.add_outputs(1);
  v1::Plan sum = makePlan(2, mesh, 1, "redistribute");
  addConvert(sum, 0, {3, 4}, {kPartial}, {kR});
  sum.add_outputs(1);
  const at::Tensor x = at::rand({5, 4});
  const OperatorNumber first =
      workers.send({workers.put(1, x, {kS0}), define(reshape), define(sum), run(1, {1}, 2), run(2, {2}, 3)});
  const v1::OperatorFailed original = workers.driver().awaitFailure(1, first);
  CHECK_THAT(workers.driver().awaitFailure(1, first + 1).error().message(), Catch::Contains("aten::reshape"));
  const v1::Status onPeer = workers.driver().awaitFailure(0, first + 1).error();
  CHECK_THAT(onPeer.message(), Catch::Contains("aten::reshape"));
  CHECK_THAT(onPeer.message(), Catch::Contains("rank 1"));
  CHECK(workers.fetchError(1, 3).message() == original.error().message());
  const at::Tensor y = at::rand({3, 4});
  workers.send({workers.put(10, y, {kPartial}), run(2, {10}, 11)});
  for (const Rank rank : {0, 1}) CHECK(at::equal(workers.fetch(rank, 11), y));
}

TEST_CASE("a conversion that is not defined is an error on all ranks") {
  RunningWorkers workers(2);
  v1::Plan plan = makePlan(1, workers.mesh(), 1, "redistribute");
  addConvert(plan, 0, {4}, {kS0}, {Placement::partial(ReduceOp::kAvg)});
  addConvert(plan, 1, {4}, {Placement::partial(ReduceOp::kAvg)}, {Placement::partial(ReduceOp::kMax)});
  plan.add_outputs(2);
  workers.send({workers.put(1, at::arange(4), {kS0}), define(plan), run(1, {1}, 2)});
  for (const Rank rank : {0, 1}) CHECK_FALSE(workers.fetchError(rank, 2).message().empty());
}

TEST_CASE("a worker stops while it waits for a peer in a collective") {
  RunningWorkers workers(2);
  const DeviceMesh mesh = workers.mesh();
  const GroupId alone = 2;
  workers.driver().join(alone, {0});
  // Only rank 0 hears of this conversion.
  const at::Tensor x = at::ones({4});
  workers.driver().send(
      alone, {workers.put(1, x, {kPartial}), define(convertPlan(1, mesh, {4}, kPartial, kR)), run(1, {1}, 2)});
  workers.worker(0).stop(absl::OkStatus());
  CHECK(workers.worker(0).wait().ok());
  workers.driver().drain(kAll, 1);
}

TEST_CASE("a fence waits for both streams") {
  RunningWorkers workers(2);
  const at::Tensor x = at::rand({512, 512});
  workers.send({define(convertPlan(1, workers.mesh(), {512, 512}, kPartial, kR)), workers.put(1, x, {kPartial})});
  for (OperandId id = 2; id < 20; ++id) workers.send({run(1, {1}, id)});
  for (const Rank rank : {0, 1}) {
    workers.driver().drain(kAll, rank);
    std::uint64_t credited = 0;
    for (const v1::ReportItem& item : workers.driver().items(rank)) {
      if (item.has_frame_done() && item.frame_done().group() == kAll) credited = item.frame_done().sequence();
    }
    CHECK(credited >= 19);
  }
}

}  // namespace dtorch
