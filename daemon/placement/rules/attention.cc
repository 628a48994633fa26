#include <array>

#include "daemon/placement/notation.h"
#include "daemon/placement/rule.h"

namespace dtorch {
namespace {

// Batch and heads pass through; a mask broadcasts over both. With grouped queries there are fewer heads of keys than of
// queries, so that heads stay whole (their extents differ).
constexpr std::array kRules = std::to_array<Rule>({
    {"aten::scaled_dot_product_attention", notationFactors,
     "... [l] [e], ... [s] [e], ... [s] [v], ... [l] [s] -> ... [l] [v]"},
    {"aten::_scaled_dot_product_attention_math", notationFactors,
     "... [l] [e], ... [s] [e], ... [s] [v], ... [l] [s], ... [l] [s] -> ... [l] [v], ... [l] [s]"},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", notationFactors,
     "b h [l] [e], b h [s] [e], b h [s] [v], b h [l] [s] -> b h [l] [v], b h [l]"},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", notationFactors,
     "b h [l] [v], b h [l] [e], b h [s] [e], b h [s] [v], b h [l] [v], b h [l], b h [l] [s] -> b h [l] [e], b h [s] "
     "[e], b h [s] [v]"},
});

}  // namespace

absl::Span<const Rule> attentionRules() { return kRules; }

}  // namespace dtorch
