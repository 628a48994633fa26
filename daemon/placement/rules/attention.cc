#include <algorithm>
#include <array>

#include "daemon/placement/notation.h"
#include "daemon/placement/rule.h"

namespace dtorch {
namespace {

// Several heads of queries share one of keys and values: where the heads are split, each rank gets whole groups.
void groupHeads(const RuleCall& call, Factors* factors) {
  const std::vector<std::int64_t>& key = call.inputs[1]->shape;
  const std::vector<std::int64_t>& value = call.inputs[2]->shape;
  if (key.size() < 3 || value.size() != key.size() || call.inputs[0]->shape.size() != key.size()) return;
  const std::int64_t groups = key[key.size() - 3];
  const std::int64_t heads = call.inputs[0]->shape[key.size() - 3];
  if (value[value.size() - 3] != groups || groups <= 1 || heads <= groups || heads % groups != 0) return;
  const int group = factors->add();
  factors->neverEmpty.push_back(group);
  const auto set = [&](bool output, std::size_t tensor, const std::vector<std::int64_t>& shape) {
    if (shape.size() < 3) return;
    const std::size_t dim = shape.size() - 3;
    std::vector<int>& of = (output ? factors->outputs : factors->inputs)[tensor];
    if (shape[dim] != heads && shape[dim] != groups) return;  // a mask that broadcasts
    of[dim] = group;
    if (shape[dim] == heads) {
      factors->blocks.push_back({output, static_cast<int>(tensor), static_cast<int>(dim), heads / groups});
    }
  };
  for (std::size_t i = 0; i < call.inputs.size(); ++i) set(false, i, call.inputs[i]->shape);
  for (std::size_t o = 0; o < call.outputs.size(); ++o) set(true, o, call.outputs[o]->shape);
}

// Batch, heads and queries pass through; a mask broadcasts over them. Which keys a query sees goes by its position
// where the attention is causal. The flash kernels divide by the number of heads and batches that they see. Detail: the
// notation, whose second-last dimension of the first input is that of the queries.
absl::StatusOr<Factors> attentionFactors(const RuleCall& call, absl::string_view detail) {
  const Value* dropout = call.argument("dropout_p");
  const auto* probability = dropout == nullptr ? nullptr : dropout->as<double>();
  if (probability != nullptr && *probability != 0) {
    return absl::UnimplementedError("with dropout_p it draws random numbers in the order of its whole result");
  }
  absl::StatusOr<Factors> factors = notationFactors(call, detail);
  if (!factors.ok()) return factors;
  if (call.flag("is_causal")) factors->keepWhole(*(factors->inputs[0].end() - 2));
  if (call.flag("enable_gqa")) groupHeads(call, &*factors);
  return factors;
}

constexpr std::array kRules = std::to_array<Rule>({
    {"aten::scaled_dot_product_attention", attentionFactors,
     "... l [e], ... [s] [e], ... [s] [v], ... l [s] -> ... l [v]; full ...0 ...1 l"},
    {"aten::_scaled_dot_product_attention_math", attentionFactors,
     "... l [e], ... [s] [e], ... [s] [v], ... l [s], ... l [s] -> ... l [v], ... l [s]"},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", attentionFactors,
     "b h l [e], b h [s] [e], b h [s] [v], b h l [s] -> b h l [v], b h l; full b h l"},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", attentionFactors,
     "b h l [v], b h l [e], b h [s] [e], b h [s] [v], b h l [v], b h l, b h l [s] -> b h l [e], b h [s] [e], b h [s] "
     "[v]; full b h l; l:sum"},
    {"dtorch::apply_rotary_emb", notationFactors, "... [d], ... [d], ... [d] -> ... [d]; linear 0"},
});

}  // namespace

absl::Span<const Rule> attentionRules() { return kRules; }

}  // namespace dtorch
