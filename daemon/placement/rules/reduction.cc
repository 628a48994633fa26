#include <algorithm>
#include <array>

#include "daemon/placement/rule.h"

namespace dtorch {
namespace {

// Reductions over the dimensions of argument "dim" (all of them when it is absent or None). Detail: "sum" (linear too)
// or "product" when parts reduce to Partial of that kind; empty: reduced dimensions must stay whole.
absl::StatusOr<Factors> reductionFactors(const RuleCall& call, absl::string_view detail) {
  const std::size_t dims = call.inputs[0]->shape.size();
  absl::StatusOr<std::vector<int>> reduced = call.dimensions("dim", dims);
  if (!reduced.ok()) return reduced.status();
  // An empty list means all, too.
  const bool all = reduced->empty();
  const Value* keep = call.argument("keepdim");
  const bool keepDim = keep != nullptr && keep->as<bool>() != nullptr && *keep->as<bool>();

  Factors factors;
  factors.inputs.emplace_back();
  std::vector<int> output;
  for (std::size_t d = 0; d < dims; ++d) {
    const bool isReduced = all || std::find(reduced->begin(), reduced->end(), static_cast<int>(d)) != reduced->end();
    const int factor = isReduced && detail.empty() ? Factors::kWhole : factors.add();
    factors.inputs[0].push_back(factor);
    if (!isReduced) output.push_back(factor);
    if (isReduced && keepDim) output.push_back(Factors::kWhole);
  }
  factors.outputs.assign(call.outputs.size(), output);
  if (detail == "sum") {
    factors.reducedBy = {ReduceOp::kSum};
    factors.linear = {{0}};
  } else if (detail == "product") {
    factors.reducedBy = {ReduceOp::kProduct};
  }
  return factors;
}

constexpr std::array<Rule, 23> kRules = {{
    {"aten::sum", reductionFactors, "sum"},
    {"aten::sum.dim_IntList", reductionFactors, "sum"},
    {"aten::prod.dim_int", reductionFactors, "product"},
    // A local mean weighs uneven shards alike, and an empty one is NaN: the reduced dimensions must be whole.
    {"aten::mean", reductionFactors, ""},
    {"aten::mean.dim", reductionFactors, ""},
    // No kernel reduces zero elements by min or max, so an empty shard has no part to give: whole.
    {"aten::amax", reductionFactors, ""},
    {"aten::amin", reductionFactors, ""},
    {"aten::max", reductionFactors, ""},
    {"aten::min", reductionFactors, ""},
    // The index returned is global only where the dimension is whole.
    {"aten::argmax", reductionFactors, ""},
    {"aten::argmin", reductionFactors, ""},
    {"aten::max.dim", reductionFactors, ""},
    {"aten::min.dim", reductionFactors, ""},
    {"aten::median.dim", reductionFactors, ""},
    {"aten::all", reductionFactors, ""},
    {"aten::all.dim", reductionFactors, ""},
    {"aten::any", reductionFactors, ""},
    {"aten::any.dim", reductionFactors, ""},
    {"aten::logsumexp", reductionFactors, ""},
    {"aten::var.correction", reductionFactors, ""},
    {"aten::std.correction", reductionFactors, ""},
    {"aten::linalg_vector_norm", reductionFactors, ""},
    {"aten::count_nonzero.dim_IntList", reductionFactors, ""},
}};

}  // namespace

absl::Span<const Rule> reductionRules() { return kRules; }

}  // namespace dtorch
