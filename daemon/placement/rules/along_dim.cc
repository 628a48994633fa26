#include <array>

#include "daemon/placement/rule.h"

namespace dtorch {
namespace {

// Results shaped like input 0, where each line along argument "dim" is computed from that line of the inputs: the
// dimension stays whole, all others pass through. Detail "linear": a Partial passes through input 0.
absl::StatusOr<Factors> alongDimFactors(const RuleCall& call, absl::string_view detail) {
  const std::size_t dims = call.inputs[0]->shape.size();
  absl::StatusOr<int> dim = call.dimension("dim", dims);
  if (!dim.ok()) return dim.status();
  Factors factors;
  std::vector<int> of(dims);
  for (std::size_t d = 0; d < dims; ++d) of[d] = static_cast<int>(d) == *dim ? Factors::kWhole : factors.add();
  factors.inputs.assign(call.inputs.size(), of);
  factors.outputs.assign(call.outputs.size(), of);
  if (detail == "linear") factors.linear = {{0}};
  return factors;
}

constexpr std::array<Rule, 15> kRules = {{
    {"aten::softmax.int", alongDimFactors, ""},
    {"aten::_softmax", alongDimFactors, ""},
    {"aten::_softmax_backward_data", alongDimFactors, "linear"},
    {"aten::log_softmax.int", alongDimFactors, ""},
    {"aten::_log_softmax", alongDimFactors, ""},
    {"aten::_log_softmax_backward_data", alongDimFactors, ""},
    {"aten::cumsum", alongDimFactors, "linear"},
    {"aten::cumprod", alongDimFactors, ""},
    {"aten::logcumsumexp", alongDimFactors, ""},
    {"aten::cummax", alongDimFactors, ""},
    {"aten::cummin", alongDimFactors, ""},
    {"aten::sort", alongDimFactors, ""},
    {"aten::sort.stable", alongDimFactors, ""},
    {"aten::argsort", alongDimFactors, ""},
    {"aten::topk", alongDimFactors, ""},
}};

}  // namespace

absl::Span<const Rule> alongDimRules() { return kRules; }

}  // namespace dtorch
