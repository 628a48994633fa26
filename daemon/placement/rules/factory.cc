#include <array>

#include "daemon/placement/notation.h"
#include "daemon/placement/rule.h"

namespace dtorch {
namespace {

// Made like a tensor, of sizes that are given: whatever its placement, the result is whole on every rank where the
// tensor's dimensions are not those of the result. Factories without tensors are placed by the planner.
constexpr std::array kRules = std::to_array<Rule>({
    {"aten::new_zeros", notationFactors, "* -> *"},
    {"aten::new_ones", notationFactors, "* -> *"},
    {"aten::new_full", notationFactors, "* -> *"},
    {"aten::new_empty", notationFactors, "* -> *"},
    {"aten::one_hot", notationFactors, "... -> ... [k]"},
    {"aten::bucketize", notationFactors, "..., * -> ..."},
    {"aten::isin.Tensor_Tensor", notationFactors, "..., * -> ..."},
    {"aten::isin.Tensor_Scalar", notationFactors, "... -> ..."},
    {"aten::fake_quantize_per_tensor_affine", notationFactors, "..., *, * -> ..."},
    {"aten::fake_quantize_per_tensor_affine_cachemask", notationFactors, "... -> ..."},
    {"aten::fake_quantize_per_tensor_affine_cachemask_backward", notationFactors, "..., ... -> ...; linear 0"},
    {"aten::view_as_real", notationFactors, "... -> ... [2]"},
    {"aten::view_as_complex", notationFactors, "... [2] -> ..."},
});

}  // namespace

absl::Span<const Rule> factoryRules() { return kRules; }

}  // namespace dtorch
