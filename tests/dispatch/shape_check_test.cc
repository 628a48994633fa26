// Shapes that LibTorch's kernels take on trust are refused before a kernel, or a Meta kernel, sees them.
#include "dispatch/shape_check.h"

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "dispatch/call_arguments.h"
#include "dispatch/prepared_call.h"
#include "tests/catch.h"

namespace dtorch {
namespace {

using Ints = std::vector<std::int64_t>;

/// A call by schema name; its arguments are those of at:: functions.
struct Call {
  std::string name;
  torch::jit::Stack stack;
};

absl::Status check(const Call& call) {
  const c10::OperatorHandle op = *findOperator(call.name);
  REQUIRE(call.stack.size() == op.schema().arguments().size());
  const ArgumentCheck shapes = shapeCheckOf(op.schema().name());
  REQUIRE(shapes != nullptr);
  return shapes(CallArguments(op.schema(), call.stack));
}

/// The call passes and runs; with argument `index` replaced it is refused, on the CPU and on Meta, and names
/// `argument`.
void refusesOnly(Call call, std::size_t index, const c10::IValue& wrong, const std::string& argument) {
  INFO(call.name << ", " << argument);
  CHECK(check(call).ok());
  torch::jit::Stack copy = call.stack;
  CHECK_NOTHROW(findOperator(call.name)->callBoxed(&copy));
  call.stack[index] = wrong;
  for (const bool meta : {false, true}) {
    if (meta) {
      for (c10::IValue& value : call.stack) {
        if (value.isTensor() && value.toTensor().defined()) value = value.toTensor().to(c10::kMeta);
      }
    }
    const absl::Status status = check(call);
    INFO(status);
    CHECK(absl::IsInvalidArgument(status));
    CHECK(std::string(status.message()).find("'" + argument + "'") != std::string::npos);
  }
}

at::Tensor f(const Ints& shape) { return at::randn(shape); }
at::Tensor zeros(const Ints& shape) { return at::zeros(shape, at::kLong); }

TEST_CASE("gradients are of the shape of what the forward operator returned") {
  const c10::IValue none;
  refusesOnly({"aten::avg_pool2d_backward",
               {f({2, 3, 2, 2}), f({2, 3, 4, 4}), Ints{2, 2}, Ints{2, 2}, Ints{0, 0}, false, true, none}},
              0, f({8, 3, 2, 2}), "grad_output");
  refusesOnly({"aten::avg_pool2d_backward",
               {f({2, 3, 2, 2}), f({2, 3, 4, 4}), Ints{2, 2}, Ints{2, 2}, Ints{0, 0}, false, true, none}},
              1, f({0, 3, 4, 4}), "grad_output");
  const Call flat = {
      "aten::max_pool2d_with_indices_backward",
      {f({1, 1, 2, 2}), f({1, 1, 4, 4}), Ints{2, 2}, Ints{2, 2}, Ints{0, 0}, Ints{1, 1}, false, zeros({1, 1, 2, 2})}};
  refusesOnly(flat, 7, zeros({1, 1, 1, 2}), "indices");
  for (const bool ceil : {false, true}) {
    const std::int64_t windows = ceil ? 3 : 2;
    const Call deep = {"aten::max_pool3d_with_indices_backward",
                       {f({1, 2, windows, windows, windows}), f({1, 2, 6, 6, 6}), Ints{3, 3, 3}, Ints{2, 2, 2},
                        Ints{0, 0, 0}, Ints{1, 1, 1}, ceil, zeros({1, 2, windows, windows, windows})}};
    refusesOnly(deep, 0, f({9, 2, windows, windows, windows}), "grad_output");
    refusesOnly(deep, 7, zeros({1, 2, 1, 1, 1}), "indices");
  }
  refusesOnly({"aten::reflection_pad1d_backward", {f({1, 1, 110}), f({1, 1, 100}), Ints{5, 5}}}, 1, f({4, 1, 100}),
              "grad_output");
  refusesOnly({"aten::replication_pad2d_backward", {f({5, 3, 4, 5}), f({5, 3, 4, 4}), Ints{-4, 5, 0, 0}}}, 0,
              f({5, 1, 4, 5}), "grad_output");
  refusesOnly({"aten::_adaptive_avg_pool2d_backward", {f({2, 8, 1, 5}), f({2, 8, 1, 8})}}, 1, f({1, 1, 1, 1}),
              "grad_output");
  refusesOnly({"aten::_softmax_backward_data", {f({2, 3}), f({2, 3}), 1, static_cast<std::int64_t>(at::kFloat)}}, 0,
              f({200, 3}), "grad_output");
  refusesOnly({"aten::unfold_backward", {f({4, 3, 2}), Ints{5, 3}, 0, 2, 1}}, 0, f({1, 3, 2}), "grad_in");
  refusesOnly({"aten::grid_sampler_2d_backward",
               {f({1, 2, 3, 3}), f({1, 2, 4, 4}), f({1, 3, 3, 2}), 0, 0, false, c10::List<bool>({true, true})}},
              0, f({1, 1, 3, 3}), "grad_output");
  refusesOnly({"aten::_pdist_backward", {f({6}), f({4, 3}), 2.0, f({6})}}, 3, f({1}), "pdist");
  refusesOnly({"aten::_cdist_backward", {f({4, 5}), f({4, 3}), f({5, 3}), 2.0, f({4, 5})}}, 4, f({1, 1}), "cdist");
}

TEST_CASE("statistics have an element a channel or row") {
  const c10::IValue none;
  const at::Tensor x = f({2, 3, 4});
  const at::Tensor c = f({3});
  const at::Tensor one = f({1});
  for (const bool training : {true, false}) {
    const Call forward = {"aten::native_batch_norm", {x, c, c, c, c.abs(), training, 0.1, 1e-5}};
    refusesOnly(forward, 1, one, "weight");
    refusesOnly(forward, 3, one, "running_mean");
  }
  refusesOnly({"aten::native_batch_norm", {x, c, c, c, c.abs(), false, 0.1, 1e-5}}, 3, none, "running_mean");
  const auto backward = [&](bool training) {
    return Call{"aten::native_batch_norm_backward",
                {x, x, c, c, c.abs(), c, c, training, 1e-5, c10::List<bool>({true, true, true})}};
  };
  refusesOnly(backward(true), 0, f({1}), "grad_out");
  refusesOnly(backward(true), 5, one, "save_mean");
  refusesOnly(backward(true), 6, none, "save_invstd");
  refusesOnly(backward(false), 4, none, "running_var");
  const Call layer = {"aten::native_layer_norm_backward",
                      {x, x, Ints{4}, f({2, 3, 1}), f({2, 3, 1}), f({4}), f({4}), c10::List<bool>({true, true, true})}};
  refusesOnly(layer, 3, one, "mean");
  refusesOnly(layer, 4, one, "rstd");
  refusesOnly({"aten::_weight_norm_interface", {f({20, 3}), f({20, 1}), 0}}, 1, f({2, 1}), "g");
}

TEST_CASE("lists, heads and pivots go with what they belong to") {
  const auto list = [](const Ints& shape) { return c10::IValue(c10::List<at::Tensor>({f(shape)})); };
  const Call sgd = {
      "aten::_fused_sgd_",
      {list({50}), list({50}), list({50}), 0.0, 0.9, 0.1, 0.0, false, false, false, c10::IValue(), c10::IValue()}};
  refusesOnly(sgd, 1, list({2}), "grads");
  refusesOnly(sgd, 2, list({2}), "momentum_buffer_list");
  refusesOnly(sgd, 0, c10::List<at::Tensor>({f({1}).expand({50})}), "self");
  const Call attention = {
      "aten::_scaled_dot_product_flash_attention_for_cpu",
      {f({2, 4, 5, 8}), f({2, 2, 6, 8}), f({2, 2, 6, 8}), 0.0, false, c10::IValue(), c10::IValue()}};
  refusesOnly(attention, 1, f({1, 2, 6, 8}), "key");
  refusesOnly(attention, 1, f({2, 8, 6, 8}), "key");
  refusesOnly(attention, 2, f({2, 2, 3, 8}), "value");
  const auto tensors = [](const std::vector<Ints>& shapes) {
    c10::List<at::Tensor> made;
    for (const Ints& shape : shapes) made.push_back(f(shape));
    return c10::IValue(made);
  };
  const Call lstm = {"aten::lstm.input",
                     {f({3, 4, 5}), tensors({{1, 4, 3}, {1, 4, 3}}), tensors({{12, 5}, {12, 3}, {12}, {12}}), true, 1,
                      0.0, false, false, false}};
  refusesOnly(lstm, 1, tensors({{1, 1, 3}, {1, 4, 3}}), "hx");
  refusesOnly(lstm, 2, tensors({{12, 5}, {12, 1}, {12}, {12}}), "params");
  refusesOnly(lstm, 2, tensors({{12, 5}, {12, 3}}), "params");
  refusesOnly({"aten::lu_unpack", {at::eye(3), at::tensor({1, 2, 3}, at::kInt), true, true}}, 1,
              at::tensor({1}, at::kInt), "LU_pivots");
}

}  // namespace
}  // namespace dtorch
