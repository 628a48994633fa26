#include "worker/plan.h"

#include "proto/codec.h"
#include "tests/catch.h"
#include "tests/worker/worker_driver.h"

namespace dtorch {
namespace {

const Placement kR = Placement::replicate();
const Placement kS0 = Placement::shard(0);
const Placement kPartial = Placement::partial();

std::unique_ptr<const Plan> decode(const v1::Plan& wire, Rank rank = 0) {
  absl::StatusOr<std::unique_ptr<const Plan>> plan = Plan::create(wire, rank, at::kCPU);
  REQUIRE(plan.ok());
  return *std::move(plan);
}

v1::Plan addPlan(const DeviceMesh& mesh) {
  v1::Plan plan = makePlan(1, mesh, 2, "aten::add.Tensor");
  addKernel(plan, "aten::add.Tensor", {TensorArg{0}, TensorArg{1}, 1});
  addOutput(plan, 2, *makeMeta(DType::kFloat32, {5, 3}), {kS0});
  return plan;
}

std::string message(const absl::Status& status) { return std::string(status.message()); }

}  // namespace

TEST_CASE("a plan of one kernel is one segment on the compute stream") {
  const auto plan = decode(addPlan(cpuMesh({2})), 1);
  REQUIRE(plan->error.ok());
  CHECK(plan->slots == 3);
  REQUIRE(plan->segments.size() == 1);
  CHECK(plan->segments[0].stream == StreamKind::kCompute);
  CHECK(plan->segments[0].inputs == std::vector<std::uint32_t>{0, 1});
  CHECK_FALSE(plan->segments[0].mutates);
  REQUIRE(plan->expected.size() == 1);
  CHECK(plan->expected[0].dtype == at::kFloat);
  CHECK(plan->expected[0].shape == std::vector<std::int64_t>{2, 3});
}

TEST_CASE("conversions that need other ranks divide a plan into segments of alternating streams") {
  v1::Plan wire = makePlan(1, cpuMesh({2}), 2, "aten::mm");
  addConvert(wire, 0, {4, 4}, {kPartial}, {kR});              // slot 2
  addConvert(wire, 1, {4, 4}, {kR}, {kS0});                   // slot 3, local
  addKernel(wire, "aten::mm", {TensorArg{3}, TensorArg{2}});  // slot 4
  addConvert(wire, 4, {4, 4}, {kS0}, {kR});                   // slot 5
  wire.add_outputs(5);
  const auto plan = decode(wire);
  REQUIRE(plan->error.ok());
  REQUIRE(plan->segments.size() == 3);
  CHECK(plan->segments[0].stream == StreamKind::kCommunication);
  CHECK(plan->segments[0].inputs == std::vector<std::uint32_t>{0});
  CHECK(plan->segments[1].stream == StreamKind::kCompute);
  CHECK(plan->segments[1].inputs == std::vector<std::uint32_t>{1});
  CHECK(plan->segments[1].begin == 1);
  CHECK(plan->segments[1].end == 3);
  CHECK(plan->segments[2].stream == StreamKind::kCommunication);
  CHECK(plan->segments[2].inputs.empty());
}

TEST_CASE("on a mesh of one rank nothing leaves the compute stream") {
  v1::Plan wire = makePlan(1, cpuMesh({1}), 1, "redistribute");
  addConvert(wire, 0, {4, 4}, {kPartial}, {kR});
  wire.add_outputs(1);
  const auto plan = decode(wire);
  REQUIRE(plan->segments.size() == 1);
  CHECK(plan->segments[0].stream == StreamKind::kCompute);
}

TEST_CASE("an operator that writes to its input mutates, whatever the plan says") {
  v1::Plan wire = makePlan(1, cpuMesh({1}), 2, "aten::add_.Tensor");
  addKernel(wire, "aten::add_.Tensor", {TensorArg{1}, TensorArg{0}, 1});
  wire.add_outputs(2);
  const auto plan = decode(wire);
  REQUIRE(plan->error.ok());
  CHECK(plan->segments[0].mutates);
  CHECK(std::get<KernelAction>(plan->actions[0]).writes == std::vector<std::uint32_t>{1});
}

TEST_CASE("brief is what is bounded by small inputs and outputs") {
  const auto briefly = [](const v1::Plan& wire) {
    const auto plan = decode(wire);
    REQUIRE(plan->error.ok());
    return plan->brief;
  };
  const auto call = [](const std::string& name, const std::vector<Value>& arguments, std::vector<std::int64_t> shape) {
    v1::Plan wire = makePlan(1, cpuMesh({1}), 1, name);
    addKernel(wire, name, arguments);
    addOutput(wire, 1, *makeMeta(DType::kFloat32, std::move(shape)), {kR});
    return wire;
  };
  CHECK(briefly(addPlan(cpuMesh({2}))));
  CHECK(briefly(call("aten::relu", {TensorArg{0}}, {64, 64})));
  CHECK_FALSE(briefly(call("aten::relu", {TensorArg{0}}, {64, 65})));
  CHECK_FALSE(briefly(call("aten::relu", {TensorArg{0}}, {1LL << 20, 1LL << 20})));
  CHECK_FALSE(briefly(
      call("aten::special_hermite_polynomial_h.n_scalar", {TensorArg{0}, 1000000}, {1})));  // a loop of n rounds
  CHECK_FALSE(briefly(call("aten::bernoulli", {TensorArg{0}, Value()}, {1})));              // takes turns
  v1::Plan unknown = makePlan(1, cpuMesh({1}), 1, "aten::nonzero");
  addKernel(unknown, "aten::nonzero", {TensorArg{0}});
  unknown.add_outputs(1);
  CHECK_FALSE(briefly(unknown));
  v1::Plan conversion = makePlan(1, cpuMesh({2}), 1, "redistribute");
  addConvert(conversion, 0, {4, 4}, {kPartial}, {kR});
  CHECK_FALSE(briefly(conversion));
}

TEST_CASE("local sizes are this rank's own") {
  for (const Rank rank : {0, 1, 2, 3}) {
    v1::Plan wire = makePlan(1, cpuMesh({2, 2}), 0, "aten::zeros");
    const LocalSizes sizes{{5, 3}, {kS0, Placement::shard(1)}};
    addKernel(wire, "aten::zeros", {sizes, DType::kFloat32, Value(), DeviceArg{"cuda"}, Value()});
    addOutput(wire, 0, *makeMeta(DType::kFloat32, {5, 3}), {kS0, Placement::shard(1)});
    const auto plan = decode(wire, rank);
    REQUIRE(plan->error.ok());
    std::vector<at::Tensor> outputs;
    REQUIRE(std::get<KernelAction>(plan->actions[0]).call.run({}, &outputs).ok());
    const std::int64_t rows = rank < 2 ? 3 : 2;
    const std::int64_t columns = rank % 2 == 0 ? 2 : 1;
    CHECK(outputs.at(0).sizes() == at::IntArrayRef({rows, columns}));
    CHECK(plan->expected[0].shape == std::vector<std::int64_t>{rows, columns});
  }
}

TEST_CASE("a rank outside the mesh has no coordinate") {
  const auto plan = decode(addPlan(cpuMesh({2})), 2);
  CHECK_FALSE(plan->coordinate.has_value());
}

TEST_CASE("what cannot run is an error that says why, and has as many outputs as planned") {
  v1::Plan wire = addPlan(cpuMesh({1}));
  std::string why;
  SECTION("an unknown operator") {
    wire.mutable_steps(0)->mutable_kernel()->set_operator_name("aten::frobnicate");
    why = "frobnicate";
  }
  SECTION("an argument that does not fit the schema") {
    toWire(Value("one"), wire.mutable_steps(0)->mutable_kernel()->mutable_arguments(2));
    why = "alpha";
  }
  SECTION("a slot that does not exist yet") {
    toWire(Value(TensorArg{2}), wire.mutable_steps(0)->mutable_kernel()->mutable_arguments(1));
    why = "slot 2";
  }
  SECTION("an output that no step makes") {
    wire.set_outputs(0, 3);
    why = "slot 3";
  }
  SECTION("a step of an unknown kind") {
    wire.add_steps();
    why = "unknown kind";
  }
  SECTION("metadata of some outputs only") {
    wire.add_outputs(0);
    why = "each of its outputs";
  }
  SECTION("more tensors than anybody needs") {
    wire.mutable_steps(0)->mutable_kernel()->set_outputs(4000000000U);
    why = "65536";
  }
  SECTION("placements that do not fit the mesh") {
    addConvert(wire, 0, {5, 3}, {kR, kR}, {kS0});
    why = "placement";
  }
  SECTION("a negative extent") {
    addConvert(wire, 0, {5, -3}, {kR}, {kS0});
    why = "negative";
  }
  const auto plan = decode(wire);
  CHECK_FALSE(plan->error.ok());
  CHECK_THAT(message(plan->error), Catch::Contains(why));
  CHECK(plan->segments.empty());
  CHECK(plan->outputs.size() == static_cast<std::size_t>(wire.outputs_size()));
}

TEST_CASE("a plan without a mesh is refused") {
  v1::Plan wire = addPlan(cpuMesh({1}));
  wire.clear_mesh();
  CHECK(Plan::create(wire, 0, at::kCPU).status().code() == absl::StatusCode::kInvalidArgument);
}

}  // namespace dtorch
