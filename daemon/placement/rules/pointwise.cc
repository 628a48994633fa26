#include <algorithm>
#include <array>
#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/placement/notation.h"
#include "daemon/placement/rule.h"

namespace dtorch {
namespace {

// Detail: what notation.h says after ";". A set of inputs in which the operator is linear counts only when the call has
// all of them as tensors: x + 10 is affine, not linear.
constexpr std::array kRules = std::to_array<Rule>({
    {"aten::add", pointwiseFactors, "linear 0 1"},
    {"aten::sub", pointwiseFactors, "linear 0 1"},
    {"aten::subtract", pointwiseFactors, "linear 0 1"},
    {"aten::rsub", pointwiseFactors, "linear 0 1"},
    {"aten::mul", pointwiseFactors, "linear 0|1"},
    {"aten::multiply", pointwiseFactors, "linear 0|1"},
    {"aten::div", pointwiseFactors, "linear 0"},
    {"aten::divide", pointwiseFactors, "linear 0"},
    {"aten::true_divide", pointwiseFactors, "linear 0"},
    {"aten::neg", pointwiseFactors, "linear 0"},
    {"aten::negative", pointwiseFactors, "linear 0"},
    {"aten::positive", pointwiseFactors, "moved 0"},
    {"aten::lerp", pointwiseFactors, "linear 0 1"},
    {"aten::addcmul", pointwiseFactors, "linear 0 1|0 2"},
    {"aten::addcdiv", pointwiseFactors, "linear 0 1"},
    {"aten::where.self", pointwiseFactors, "moved 1 2"},
    {"aten::deg2rad", pointwiseFactors, "linear 0"},
    {"aten::rad2deg", pointwiseFactors, "linear 0"},
    {"aten::clone", pointwiseFactors, "moved 0"},
    // Backward operators are linear in the gradient.
    {"aten::threshold_backward", pointwiseFactors, "linear 0"},
    {"aten::sigmoid_backward", pointwiseFactors, "linear 0"},
    {"aten::tanh_backward", pointwiseFactors, "linear 0"},
    {"aten::gelu_backward", pointwiseFactors, "linear 0"},
    {"aten::silu_backward", pointwiseFactors, "linear 0"},
    {"aten::hardtanh_backward", pointwiseFactors, "linear 0"},
    {"aten::hardswish_backward", pointwiseFactors, "linear 0"},
    {"aten::hardsigmoid_backward", pointwiseFactors, "linear 0"},
    {"aten::leaky_relu_backward", pointwiseFactors, "linear 0"},
    {"aten::elu_backward", pointwiseFactors, "linear 0"},
    {"aten::softplus_backward", pointwiseFactors, "linear 0"},
    {"aten::softshrink_backward", pointwiseFactors, "linear 0"},
    {"aten::hardshrink_backward", pointwiseFactors, "linear 0"},
    {"aten::mish_backward", pointwiseFactors, "linear 0"},
    {"aten::logit_backward", pointwiseFactors, "linear 0"},
    {"aten::native_dropout_backward", pointwiseFactors, "linear 0"},
    {"aten::rrelu_with_noise_backward", pointwiseFactors, "linear 0"},
    {"aten::infinitely_differentiable_gelu_backward", pointwiseFactors, "linear 0"},
    {"aten::log_sigmoid_backward", pointwiseFactors, "linear 0"},
    // Not tagged pointwise, but each element of the result depends on that of the inputs alone.
    {"aten::hardswish", pointwiseFactors, ""},
    {"aten::leaky_relu", pointwiseFactors, ""},
    {"aten::log_sigmoid", pointwiseFactors, ""},
    {"aten::log_sigmoid_forward", pointwiseFactors, ""},
    {"aten::_prelu_kernel", pointwiseFactors, ""},
    {"aten::_prelu_kernel_backward", pointwiseFactors, ""},
    {"aten::zeros_like", pointwiseFactors, "unread 0"},
    {"aten::ones_like", pointwiseFactors, "unread 0"},
    {"aten::full_like", pointwiseFactors, "unread 0"},
    {"aten::empty_like", pointwiseFactors, "unread 0"},
    {"aten::fill", pointwiseFactors, ""},
    {"aten::zero", pointwiseFactors, ""},
    {"aten::_to_copy", pointwiseFactors, "linear 0"},
    {"aten::to.dtype", pointwiseFactors, "linear 0"},
    {"aten::to.dtype_layout", pointwiseFactors, "linear 0"},
    {"aten::to.device", pointwiseFactors, "linear 0"},
    {"aten::to.other", pointwiseFactors, ""},
    {"aten::type_as", pointwiseFactors, ""},
    {"aten::copy", pointwiseFactors, "moved 1"},
    {"aten::conj", pointwiseFactors, ""},
    {"aten::_conj_physical", pointwiseFactors, ""},
    {"aten::resolve_conj", pointwiseFactors, ""},
    {"aten::resolve_neg", pointwiseFactors, ""},
    {"aten::real", pointwiseFactors, ""},
    {"aten::imag", pointwiseFactors, ""},
    {"aten::complex", pointwiseFactors, ""},
    {"aten::polar", pointwiseFactors, ""},
    {"aten::floor_divide", pointwiseFactors, ""},
    {"aten::isclose", pointwiseFactors, ""},
    {"aten::isfinite", pointwiseFactors, ""},
    {"aten::isreal", pointwiseFactors, ""},
    {"aten::max.other", pointwiseFactors, ""},
    {"aten::max.out", pointwiseFactors, ""},
    {"aten::min.other", pointwiseFactors, ""},
    {"aten::min.out", pointwiseFactors, ""},
    {"aten::prelu", pointwiseFactors, "one dimension"},
    {"aten::where.Scalar", pointwiseFactors, ""},
    {"aten::where.ScalarOther", pointwiseFactors, ""},
    {"aten::where.ScalarSelf", pointwiseFactors, ""},
    {"aten::masked_fill.Tensor", pointwiseFactors, ""},
    // Aliases, which LibTorch does not tag.
    {"aten::absolute", pointwiseFactors, ""},
    {"aten::arccos", pointwiseFactors, ""},
    {"aten::arccosh", pointwiseFactors, ""},
    {"aten::arcsin", pointwiseFactors, ""},
    {"aten::arcsinh", pointwiseFactors, ""},
    {"aten::arctan", pointwiseFactors, ""},
    {"aten::arctan2", pointwiseFactors, ""},
    {"aten::arctanh", pointwiseFactors, ""},
    {"aten::fix", pointwiseFactors, ""},
    {"aten::greater", pointwiseFactors, ""},
    {"aten::greater_equal", pointwiseFactors, ""},
    {"aten::less", pointwiseFactors, ""},
    {"aten::less_equal", pointwiseFactors, ""},
    {"aten::not_equal", pointwiseFactors, ""},
    {"aten::special_expit", pointwiseFactors, ""},
    {"aten::special_xlogy", pointwiseFactors, ""},
});

}  // namespace

absl::Span<const Rule> pointwiseRules() { return kRules; }

absl::StatusOr<Factors> pointwiseFactors(const RuleCall& call, absl::string_view detail) {
  for (const TensorMeta* output : call.outputs) {
    if (output->shape != call.outputs[0]->shape) return absl::UnimplementedError("its results differ in shape");
  }
  std::string notation = "...";
  for (std::size_t a = 1; a < call.arguments.size(); ++a) absl::StrAppend(&notation, ", ...");
  if (detail == "one dimension") {
    // Its weight lies along dimension 1 of the input.
    if (call.inputs.size() != 2 || call.inputs[1]->numel() != 1) {
      return absl::UnimplementedError("it has more than one weight");
    }
    return notationFactors(call, "..., * -> ...");
  }
  absl::StrAppend(&notation, " -> ...");
  const Value* rounding = call.argument("rounding_mode");
  const bool rounds = rounding != nullptr && !rounding->isNone();
  if (!rounds) absl::StrAppend(&notation, "; ", detail);
  return notationFactors(call, notation);
}

const char* notPointwise(absl::string_view op) {
  struct Exception {
    absl::string_view op;
    const char* reason;
  };
  static constexpr std::array<Exception, 4> kExceptions = {{
      {"aten::equal", "it returns one bool for whole tensors"},
      {"aten::rrelu", "it draws random numbers"},
      {"aten::rrelu_with_noise", "it draws random numbers"},
      {"aten::rrelu_with_noise_functional", "it draws random numbers"},
  }};
  for (const Exception& exception : kExceptions) {
    if (exception.op == op) return exception.reason;
  }
  return nullptr;
}

}  // namespace dtorch
