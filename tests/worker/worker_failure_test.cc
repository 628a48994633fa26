// What fails, where it goes and who is told.
#include <ATen/ATen.h>

#include "tests/catch.h"
#include "tests/worker/running_workers.h"

namespace dtorch {
namespace {
const Placement kR = Placement::replicate();
constexpr GroupId kAll = RunningWorkers::kAll;

std::vector<OperandId> operandsOf(const v1::OperatorFailed& failed) {
  return {failed.operands().begin(), failed.operands().end()};
}
}  // namespace

TEST_CASE("a failed kernel is an error on its outputs that names operator, arguments and rank") {
  RunningWorkers workers(1);
  v1::WorkerCommand bad = run(7, {1, 2}, 4);
  bad.set_site(41);
  const OperatorNumber first =
      workers.send({workers.put(1, at::ones({2, 3}), {kR}), workers.put(2, at::ones({2, 4}), {kR}),
                    define(addPlan(7, workers.mesh())), run(7, {1, 1}, 3), bad});
  const v1::OperatorFailed failed =
      workers.driver().awaitFailure(0, first + 1);  // WIRE-2: runs and uploads are counted
  CHECK(operandsOf(failed) == std::vector<OperandId>{4});
  CHECK(failed.error().operator_name() == "aten::add.Tensor");
  CHECK(failed.error().rank() == 1);
  CHECK(failed.root() == first + 1);
  CHECK(failed.site() == 41);
  CHECK(failed.error().code() == static_cast<int>(absl::StatusCode::kInvalidArgument));
  for (const char* part : {"aten::add.Tensor(float32[2, 3], float32[2, 4])", "rank 0", "must match"}) {
    CHECK_THAT(failed.error().message(), Catch::Contains(part));
  }
  CHECK(workers.fetchError(0, 4).message() == failed.error().message());
  CHECK(at::equal(workers.fetch(0, 3), at::full({2, 3}, 2.0)));  // nothing else is touched
}

TEST_CASE("dependents do not run: they carry the first error, and the daemon learns of each") {
  RunningWorkers workers(1);
  const OperatorNumber first = workers.send({workers.put(1, at::ones({2}), {kR}), workers.put(2, at::ones({3}), {kR}),
                                             define(addPlan(1, workers.mesh())), run(1, {1, 2}, 10),
                                             run(1, {1, 10}, 11), run(1, {11, 10}, 12), run(1, {1, 1}, 13)});
  const v1::OperatorFailed original = workers.driver().awaitFailure(0, first);
  const v1::OperatorFailed last = workers.driver().awaitFailure(0, first + 2);
  CHECK(last.error().message() == original.error().message());
  CHECK(last.root() == first);
  CHECK(operandsOf(last) == std::vector<OperandId>{12});
  CHECK(operandsOf(workers.driver().awaitFailure(0, first + 1)) == std::vector<OperandId>{11});
  CHECK(workers.fetchError(0, 12).message() == original.error().message());
  CHECK(at::equal(workers.fetch(0, 13), at::full({2}, 2.0)));
}

TEST_CASE("failures are reported before the credit of their frame") {
  RunningWorkers workers(1);
  workers.send(
      {workers.put(1, at::ones({2}), {kR}), workers.put(2, at::ones({3}), {kR}), define(addPlan(1, workers.mesh()))});
  workers.send({run(1, {1, 2}, 10), run(1, {10, 10}, 11)});
  workers.driver().drain(kAll, 0);
  int failures = 0;
  bool before = true;
  for (const v1::ReportItem& item : workers.driver().items(0)) {
    if (item.has_failed()) ++failures;
    if (item.has_frame_done() && item.frame_done().group() == kAll && item.frame_done().sequence() == 2) {
      before = failures == 2;
    }
  }
  CHECK(failures == 2);
  CHECK(before);
}

TEST_CASE("a plan that cannot run here fails each of its calls") {
  RunningWorkers workers(1);
  v1::Plan plan = makePlan(1, workers.mesh(), 1, "aten::frobnicate");
  addKernel(plan, "aten::frobnicate", {TensorArg{0}}, 2);
  plan.add_outputs(1);
  plan.add_outputs(2);
  const OperatorNumber first = workers.send({workers.put(1, at::ones({2}), {kR}), define(plan), run(1, {1}, 5)});
  const v1::OperatorFailed failed = workers.driver().awaitFailure(0, first);
  CHECK(operandsOf(failed) == std::vector<OperandId>{5, 6});
  CHECK_THAT(failed.error().message(), Catch::Contains("no operator 'aten::frobnicate'"));
  CHECK(workers.fetchError(0, 6).message() == failed.error().message());
}

TEST_CASE("a result that is not what was planned is an INTERNAL error") {
  RunningWorkers workers(1);
  const auto [shape, dtype] = GENERATE(table<std::vector<std::int64_t>, DType>(
      {{{2, 3}, DType::kFloat32}, {{2, 2}, DType::kFloat32}, {{2, 3}, DType::kFloat64}}));
  v1::Plan plan = makePlan(1, workers.mesh(), 2, "aten::add.Tensor");
  addKernel(plan, "aten::add.Tensor", {TensorArg{0}, TensorArg{1}, 1});
  addOutput(plan, 2, *makeMeta(dtype, shape), {kR});
  workers.send({workers.put(1, at::ones({2, 3}), {kR}), define(plan), run(1, {1, 1}, 2)});
  if (shape == std::vector<std::int64_t>{2, 3} && dtype == DType::kFloat32) {
    CHECK(at::equal(workers.fetch(0, 2), at::full({2, 3}, 2.0)));
    return;
  }
  const v1::Status error = workers.fetchError(0, 2);
  CHECK(error.code() == static_cast<int>(absl::StatusCode::kInternal));
  CHECK_THAT(error.message(), Catch::Contains("is float32[2, 3] where"));
}

TEST_CASE("what a failed in-place operator was to change is an error too") {
  RunningWorkers workers(1);
  v1::Plan plan = makePlan(1, workers.mesh(), 2, "aten::add_.Tensor");
  addKernel(plan, "aten::add_.Tensor", {TensorArg{0}, TensorArg{1}, 1}, 1, true);
  plan.add_outputs(2);
  const OperatorNumber first = workers.send(
      {workers.put(1, at::ones({2}), {kR}), workers.put(2, at::ones({3}), {kR}), define(plan), run(1, {1, 2}, 3)});
  CHECK(operandsOf(workers.driver().awaitFailure(0, first)) == std::vector<OperandId>{1, 3});
  CHECK_THAT(workers.fetchError(0, 1).message(), Catch::Contains("aten::add_.Tensor"));
  CHECK(at::equal(workers.fetch(0, 2), at::ones({3})));
}

TEST_CASE("an unknown operand is an error of the operator that asks for it") {
  RunningWorkers workers(1);
  const OperatorNumber first = workers.send({define(addPlan(1, workers.mesh())), run(1, {98, 99}, 3)});
  CHECK_THAT(workers.driver().awaitFailure(0, first).error().message(), Catch::Contains("operand 98 is not there"));
  CHECK_THAT(workers.fetchError(0, 97).message(), Catch::Contains("operand 97 is not there"));
}

}  // namespace dtorch
