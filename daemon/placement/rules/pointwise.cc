#include <algorithm>
#include <array>

#include "daemon/placement/rule.h"

namespace dtorch {
namespace {

// Detail: sets of inputs in which the operator is linear, as "0 1" (together) or "0|1" (each alone). A set counts only
// when the call has all those inputs as tensors: x + 10 is affine, not linear.
constexpr std::array<Rule, 22> kRules = {{
    {"aten::add.Tensor", pointwiseFactors, "0 1"},
    {"aten::sub.Tensor", pointwiseFactors, "0 1"},
    {"aten::rsub.Tensor", pointwiseFactors, "0 1"},
    {"aten::mul.Tensor", pointwiseFactors, "0|1"},
    {"aten::mul.Scalar", pointwiseFactors, "0"},
    {"aten::div.Tensor", pointwiseFactors, "0"},
    {"aten::div.Scalar", pointwiseFactors, "0"},
    {"aten::true_divide.Tensor", pointwiseFactors, "0"},
    {"aten::neg", pointwiseFactors, "0"},
    {"aten::negative", pointwiseFactors, "0"},
    {"aten::positive", pointwiseFactors, "0"},
    {"aten::lerp.Scalar", pointwiseFactors, "0 1"},
    // Not tagged pointwise, but each element of the result depends on that of the inputs alone.
    {"aten::zeros_like", pointwiseFactors, ""},
    {"aten::ones_like", pointwiseFactors, ""},
    {"aten::full_like", pointwiseFactors, ""},
    {"aten::empty_like", pointwiseFactors, ""},
    {"aten::fill.Scalar", pointwiseFactors, ""},
    {"aten::zero", pointwiseFactors, ""},
    {"aten::_to_copy", pointwiseFactors, ""},
    {"aten::to.dtype", pointwiseFactors, ""},
    {"aten::threshold_backward", pointwiseFactors, "0"},
    {"aten::copy", pointwiseFactors, ""},
}};

}  // namespace

absl::Span<const Rule> pointwiseRules() { return kRules; }

absl::StatusOr<Factors> pointwiseFactors(const RuleCall& call, absl::string_view detail) {
  const std::size_t dims = call.outputs.empty() ? 0 : call.outputs[0].shape.size();
  Factors factors;
  for (std::size_t d = 0; d < dims; ++d) factors.add();
  for (const TensorMeta* input : call.inputs) {
    // Broadcasting aligns dimensions on the right; an extent of 1 that is stretched stays whole.
    std::vector<int> ofInput(input->shape.size(), Factors::kWhole);
    for (std::size_t d = 0; d < input->shape.size() && d < dims; ++d) {
      const std::size_t in = input->shape.size() - 1 - d;
      const std::size_t out = dims - 1 - d;
      if (input->shape[in] == call.outputs[0].shape[out]) ofInput[in] = static_cast<int>(out);
    }
    factors.inputs.push_back(std::move(ofInput));
  }
  for (const TensorMeta& output : call.outputs) {
    if (output.shape != call.outputs[0].shape) return absl::UnimplementedError("its results differ in shape");
    std::vector<int> ofOutput(dims);
    for (std::size_t d = 0; d < dims; ++d) ofOutput[d] = static_cast<int>(d);
    factors.outputs.push_back(std::move(ofOutput));
  }
  for (std::vector<int>& inputs : argumentSets(detail)) {
    const bool allTensors = std::all_of(inputs.begin(), inputs.end(), [&](int argument) {
      const auto* tensor = call.arguments[static_cast<std::size_t>(argument)].as<TensorArg>();
      return tensor != nullptr;
    });
    if (!allTensors) continue;
    for (int& input : inputs) {
      input = static_cast<int>(call.arguments[static_cast<std::size_t>(input)].as<TensorArg>()->index);
    }
    factors.linear.push_back(std::move(inputs));
  }
  return factors;
}

const char* notPointwise(absl::string_view op) {
  struct Exception {
    absl::string_view op;
    const char* reason;
  };
  static constexpr std::array<Exception, 3> kExceptions = {{
      {"aten::equal", "it returns one bool for whole tensors"},
      {"aten::rrelu_with_noise", "it draws random numbers"},
      {"aten::rrelu_with_noise_functional", "it draws random numbers"},
  }};
  for (const Exception& exception : kExceptions) {
    if (exception.op == op) return exception.reason;
  }
  return nullptr;
}

}  // namespace dtorch
