// Sessions that validate: what kernels may not do, found where it happens; and nothing of it without.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <cmath>
#include <limits>

#include "proto/codec.h"
#include "tests/catch.h"
#include "tests/worker/running_workers.h"

namespace dtorch {
namespace {

using Catch::Matchers::Contains;
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
const Placement kR = Placement::replicate();

// Kernels with the faults that a kernel can have.
at::Tensor scribble(const at::Tensor& /*other*/, const at::Tensor& self) {
  at::Tensor copy = self.clone();
  self.view(-1)[1].fill_(7);
  return copy;
}
at::Tensor reshape(const at::Tensor& self) {
  at::Tensor copy = self.clone();
  self.unsafeGetTensorImpl()->set_sizes_contiguous({1});
  return copy;
}
at::Tensor spoil(const at::Tensor& self) {
  const at::Tensor wide = self.to(self.is_complex() ? at::kComplexDouble : at::kDouble, false, true);  // a copy
  wide[1].fill_(kNan);
  return wide.to(self.scalar_type());
}
at::Tensor elsewhere(const at::Tensor& self) { return at::empty_like(self, at::TensorOptions(at::kMeta)); }
at::Tensor transposed(const at::Tensor& self) { return self.t().contiguous().t(); }

TORCH_LIBRARY(dtorch_test, library) {
  library.def("scribble(Tensor other, Tensor self) -> Tensor", &scribble);
  library.def("reshape(Tensor self) -> Tensor", &reshape);
  library.def("spoil(Tensor self) -> Tensor", &spoil);
  library.def("elsewhere(Tensor self) -> Tensor", &elsewhere);
  library.def("transposed(Tensor self) -> Tensor", &transposed);
}

v1::WorkerCommand validated(v1::WorkerCommand command) {
  command.set_validate(true);
  return command;
}

/// One worker; operands 1 and 2 hold what put() gave.
struct Fixture {
  RunningWorkers workers{1};
  PlanId next = 1;
  OperandId output = 10;

  /// The error of `op` on operands 1.. with validation; "" when there is none.
  std::string run(const std::string& op, const std::vector<Value>& arguments, std::uint32_t inputs,
                  bool validate = true, int outputs = 1, bool mutates = false) {
    v1::Plan plan = makePlan(next, workers.mesh(), inputs, op);
    addKernel(plan, op, arguments, static_cast<std::uint32_t>(outputs), mutates);
    plan.add_outputs(inputs);
    std::vector<OperandId> operands;
    for (OperandId id = 1; id <= inputs; ++id) operands.push_back(id);
    const v1::WorkerCommand command = dtorch::run(next++, operands, ++output);
    workers.send({define(plan), validate ? validated(command) : command});
    const v1::Status error = workers.fetchError(0, output);
    code = static_cast<absl::StatusCode>(error.code());
    return error.message();
  }
  void put(const at::Tensor& first, const at::Tensor& second = at::ones({1})) {
    workers.send({workers.put(1, first, {kR}), workers.put(2, second, {kR})});
  }
  absl::StatusCode code = absl::StatusCode::kOk;
};

}  // namespace

TEST_CASE("a NaN or an infinity is an error of the operator that made it, at its first place") {
  Fixture f;
  f.put(at::tensor({4.0, 1.0, 2.0, 0.0, 3.0, 0.0}, at::kFloat).view({2, 3}));
  CHECK(
      f.run("aten::log", {TensorArg{0}}, 1) ==
      "aten::log(float32[2, 3]) failed on rank 0: validation: output 0, float32[2, 3] here, has -inf at [1, 0], 2 such "
      "elements in all; no input has a NaN or an infinity");
  CHECK(f.code == absl::StatusCode::kOutOfRange);
  CHECK_THAT(f.run("aten::reciprocal", {TensorArg{0}}, 1), Contains("has inf at [1, 0]"));
  CHECK(f.run("aten::log", {TensorArg{0}}, 1, false).empty());
  CHECK(f.run("aten::sqrt", {TensorArg{0}}, 1).empty());
}

TEST_CASE("values are found in every floating and complex dtype") {
  const auto dtype = GENERATE(at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kComplexFloat, at::kComplexDouble,
                              at::kFloat8_e5m2, at::kFloat8_e4m3fn);
  CAPTURE(dtype);
  Fixture f;
  f.put(at::tensor({1.0, 2.0}).to(dtype));
  // Out of an input without NaN: the kernel adds one.
  CHECK_THAT(f.run("dtorch_test::spoil", {TensorArg{0}}, 1), Contains("has NaN at [1], 1 such"));
  CHECK(f.run("aten::clone", {TensorArg{0}, Value()}, 1).empty());
}

TEST_CASE("what inputs or arguments have, outputs may have") {
  Fixture f;
  f.put(at::tensor({1.0, -kInf}));
  CHECK(f.run("aten::exp", {TensorArg{0}}, 1).empty());
  CHECK(f.run("aten::neg", {TensorArg{0}}, 1).empty());
  CHECK(f.run("aten::sub.Tensor", {TensorArg{0}, TensorArg{1}, 1}, 2).empty());
  f.put(at::tensor({kNan, 1.0}));
  CHECK(f.run("aten::log", {TensorArg{0}}, 1).empty());
  f.put(at::tensor({10.0, 0.5}));
  CHECK(f.run("aten::mul.Scalar", {TensorArg{0}, -kInf}, 1).empty());
  CHECK_THAT(f.run("aten::mul.Scalar", {TensorArg{0}, 1e308}, 1), Contains("has inf at [0]"));
}

TEST_CASE("a NaN out of infinities begins there") {
  Fixture f;
  f.put(at::tensor({kInf, 1.0}), at::tensor({kInf, 1.0}));
  CHECK_THAT(f.run("aten::sub.Tensor", {TensorArg{0}, TensorArg{1}, 1}, 2), Contains("has NaN at [0], 1 such"));
  CHECK_THAT(f.run("aten::sub.Tensor", {TensorArg{0}, TensorArg{1}, 1}, 2), Contains("no input has a NaN"));
}

TEST_CASE("an in-place operator is looked at before and after, and its tensor has no value then") {
  Fixture f;
  f.put(at::tensor({1.0, 0.0}));
  CHECK_THAT(f.run("aten::log_", {TensorArg{0}}, 1, true, 1, true), Contains("has -inf at [1]"));
  CHECK_THAT(f.workers.fetchError(0, 1).message(), Contains("aten::log_"));
}

TEST_CASE("a kernel that writes to what its schema lets it only read is found, and the tensor lost") {
  Fixture f;
  f.put(at::ones({2}), at::arange(6, at::kFloat).view({2, 3}));
  const std::string error = f.run("dtorch_test::scribble", {TensorArg{0}, TensorArg{1}}, 2);
  CHECK_THAT(error, Contains("validation: the kernel changed its argument 'self', float32[2, 3]"));
  CHECK_THAT(error, Contains("which its schema does not let it write to"));
  CHECK(f.code == absl::StatusCode::kInternal);
  CHECK_THAT(f.workers.fetchError(0, 2).message(), Contains("dtorch_test::scribble"));
  CHECK(at::equal(f.workers.fetch(0, 1), at::ones({2})));
  f.put(at::ones({2}), at::arange(6, at::kFloat).view({2, 3}));
  CHECK(f.run("dtorch_test::scribble", {TensorArg{0}, TensorArg{1}}, 2, false).empty());
}

TEST_CASE("a kernel that changes its input's shape is found") {
  Fixture f;
  f.put(at::ones({2, 3}));
  CHECK_THAT(f.run("dtorch_test::reshape", {TensorArg{0}}, 1),
             Contains("argument 'self', float32[2, 3] of strides [3, 1]"));
  CHECK_THAT(f.run("dtorch_test::reshape", {TensorArg{0}}, 1), Contains("dtorch_test::reshape"));
}

TEST_CASE("results that lie otherwise than planned are found") {
  Fixture f;
  f.put(at::ones({2, 3}));
  const auto error = [&](const std::string& op, const TensorMeta& planned, bool validate) {
    v1::Plan plan = makePlan(f.next, f.workers.mesh(), 1, op);
    addKernel(plan, op, {TensorArg{0}});
    addOutput(plan, 1, planned, {kR});
    v1::WorkerCommand command = run(f.next++, {1}, ++f.output);
    command.set_validate(validate);
    const OperatorNumber number = f.workers.send({define(plan), command});
    f.workers.driver().drain(RunningWorkers::kAll, 0);
    for (const v1::ReportItem& item : f.workers.driver().items(0)) {
      if (item.failed().operator_number() == number) return item.failed().error().message();
    }
    return std::string();
  };
  const TensorMeta rows = *makeMeta(DType::kFloat32, {2, 3});
  TensorMeta columns = rows;
  columns.strides = {1, 2};
  CHECK_THAT(
      error("dtorch_test::transposed", rows, true),
      Contains("validation: output 0, float32[2, 3], has strides [1, 2] on cpu where [3, 1] on cpu was planned"));
  CHECK(error("dtorch_test::transposed", rows, false).empty());
  CHECK(error("dtorch_test::transposed", columns, true).empty());
  CHECK_THAT(error("dtorch_test::elsewhere", rows, true), Contains("on meta where [3, 1] on cpu was planned"));
}

TEST_CASE("the rank that found it is told, with an index of its part") {
  RunningWorkers workers(2);
  v1::Plan plan = makePlan(1, workers.mesh(), 1, "aten::log");
  addKernel(plan, "aten::log", {TensorArg{0}});
  plan.add_outputs(1);
  v1::WorkerCommand command = validated(run(1, {1}, 2));
  command.set_site(5);
  const OperatorNumber number = workers.send(
      {workers.put(1, at::tensor({1.0, 2.0, 3.0, 0.0}, at::kFloat), {Placement::shard(0)}), define(plan), command});
  const v1::OperatorFailed failed = workers.driver().awaitFailure(1, number);
  CHECK(failed.site() == 5);
  CHECK(failed.error().rank() == 2);
  CHECK_THAT(failed.error().message(),
             Contains("failed on rank 1: validation: output 0, float32[2] here, has -inf at [1]"));
  CHECK(at::equal(workers.fetch(0, 2), at::tensor({1.0, 2.0}, at::kFloat).log()));
}

}  // namespace dtorch
