#include <array>

#include "daemon/placement/notation.h"
#include "daemon/placement/rule.h"

namespace dtorch {
namespace {

// Windows, padding and interpolation work on the last dimensions, which stay whole; batch and channels pass through.
// The backward operators are linear in the gradient.
constexpr absl::string_view k1d = "... [w] -> ... [w]; full ...0";
constexpr absl::string_view k2d = "... [h] [w] -> ... [h] [w]; full ...0";
constexpr absl::string_view k3d = "... [d] [h] [w] -> ... [d] [h] [w]; full ...0";
constexpr absl::string_view k1dLinear = "... [w] -> ... [w]; linear-float 0; full ...0";
constexpr absl::string_view k2dLinear = "... [h] [w] -> ... [h] [w]; linear-float 0; full ...0";
constexpr absl::string_view k3dLinear = "... [d] [h] [w] -> ... [d] [h] [w]; linear-float 0; full ...0";
constexpr absl::string_view k1dBackward = "... [w], ... [w] -> ... [w]; linear-float 0; full ...0";
constexpr absl::string_view k2dBackward =
    "... [h] [w], ... [h] [w], ... [h] [w] -> ... [h] [w]; linear-float 0; full ...0";
constexpr absl::string_view k3dBackward =
    "... [d] [h] [w], ... [d] [h] [w], ... [d] [h] [w] -> ... [d] [h] [w]; linear-float 0; full ...0";
constexpr absl::string_view k1dUpsample = "n c [w] -> n c [w]; linear-float 0; full c";
constexpr absl::string_view k1dSized = "n c [w] -> n c [w]; linear-float 0; full c; sizes input_size=0";
constexpr absl::string_view k2dUpsample = "n c [h] [w] -> n c [h] [w]; linear-float 0; full c";
constexpr absl::string_view k2dSized = "n c [h] [w] -> n c [h] [w]; linear-float 0; full c; sizes input_size=0";
constexpr absl::string_view k3dUpsample = "n c [d] [h] [w] -> n c [d] [h] [w]; linear-float 0; full c";
constexpr absl::string_view k3dSized = "n c [d] [h] [w] -> n c [d] [h] [w]; linear-float 0; full c; sizes input_size=0";

// Of two or of three spatial dimensions.
absl::StatusOr<Factors> gridSamplerFactors(const RuleCall& call, absl::string_view) {
  return notationFactors(call, call.inputs[0]->shape.size() == 4
                                   ? "n c [h] [w], n [h] [w] [2] -> n c [h] [w]; linear-float 0"
                                   : "n c [d] [h] [w], n [d] [h] [w] [3] -> n c [d] [h] [w]; linear-float 0");
}

constexpr std::array kRules = std::to_array<Rule>({
    {"aten::avg_pool1d", notationFactors, k1dLinear},
    {"aten::avg_pool2d", notationFactors, k2dLinear},
    {"aten::avg_pool3d", notationFactors, k3dLinear},
    {"aten::avg_pool2d_backward", notationFactors, k2dBackward},
    {"aten::avg_pool3d_backward", notationFactors, k3dBackward},
    {"aten::adaptive_avg_pool1d", notationFactors, k1dLinear},
    {"aten::adaptive_avg_pool2d", notationFactors, k2dLinear},
    {"aten::adaptive_avg_pool3d", notationFactors, k3dLinear},
    {"aten::_adaptive_avg_pool2d", notationFactors, k2dLinear},
    {"aten::_adaptive_avg_pool3d", notationFactors, k3dLinear},
    {"aten::_adaptive_avg_pool2d_backward", notationFactors, k2dBackward},
    {"aten::_adaptive_avg_pool3d_backward", notationFactors, k3dBackward},
    {"aten::adaptive_max_pool1d", notationFactors, k1d},
    {"aten::adaptive_max_pool2d", notationFactors, k2d},
    {"aten::adaptive_max_pool3d", notationFactors, k3d},
    {"aten::adaptive_max_pool2d_backward", notationFactors, k2dBackward},
    {"aten::adaptive_max_pool3d_backward", notationFactors, k3dBackward},
    {"aten::max_pool1d", notationFactors, k1d},
    {"aten::max_pool2d", notationFactors, k2d},
    {"aten::max_pool3d", notationFactors, k3d},
    {"aten::max_pool1d_with_indices", notationFactors, k1d},
    {"aten::max_pool2d_with_indices", notationFactors, k2d},
    {"aten::max_pool3d_with_indices", notationFactors, k3d},
    {"aten::max_pool2d_with_indices_backward", notationFactors, k2dBackward},
    {"aten::max_pool3d_with_indices_backward", notationFactors, k3dBackward},
    {"aten::max_unpool2d", notationFactors, "... [h] [w], ... [h] [w] -> ... [h] [w]; full ...0"},
    {"aten::max_unpool3d", notationFactors, "... [d] [h] [w], ... [d] [h] [w] -> ... [d] [h] [w]; full ...0"},
    {"aten::fractional_max_pool2d", notationFactors, "n c [h] [w], n c [2] -> n c [h] [w]; full c"},
    {"aten::fractional_max_pool3d", notationFactors, "n c [d] [h] [w], n c [3] -> n c [d] [h] [w]; full c"},
    {"aten::fractional_max_pool2d_backward", notationFactors, k2dBackward},
    {"aten::fractional_max_pool3d_backward", notationFactors, k3dBackward},
    {"aten::reflection_pad1d", notationFactors, k1dLinear},
    {"aten::reflection_pad2d", notationFactors, k2dLinear},
    {"aten::reflection_pad3d", notationFactors, k3dLinear},
    {"aten::reflection_pad1d_backward", notationFactors, k1dBackward},
    {"aten::reflection_pad2d_backward", notationFactors, k2dBackward},
    {"aten::reflection_pad3d_backward", notationFactors, k3dBackward},
    {"aten::replication_pad1d", notationFactors, k1dLinear},
    {"aten::replication_pad2d", notationFactors, k2dLinear},
    {"aten::replication_pad3d", notationFactors, k3dLinear},
    {"aten::replication_pad1d_backward", notationFactors, k1dBackward},
    {"aten::replication_pad2d_backward", notationFactors, k2dBackward},
    {"aten::replication_pad3d_backward", notationFactors, k3dBackward},
    {"aten::upsample_nearest1d", notationFactors, k1dUpsample},
    {"aten::upsample_nearest2d", notationFactors, k2dUpsample},
    {"aten::upsample_nearest3d", notationFactors, k3dUpsample},
    {"aten::_upsample_nearest_exact1d", notationFactors, k1dUpsample},
    {"aten::_upsample_nearest_exact2d", notationFactors, k2dUpsample},
    {"aten::_upsample_nearest_exact3d", notationFactors, k3dUpsample},
    {"aten::upsample_linear1d", notationFactors, k1dUpsample},
    {"aten::upsample_bilinear2d", notationFactors, k2dUpsample},
    {"aten::upsample_bicubic2d", notationFactors, k2dUpsample},
    {"aten::upsample_trilinear3d", notationFactors, k3dUpsample},
    {"aten::_upsample_bilinear2d_aa", notationFactors, k2dUpsample},
    {"aten::_upsample_bicubic2d_aa", notationFactors, k2dUpsample},
    {"aten::upsample_nearest1d_backward", notationFactors, k1dSized},
    {"aten::upsample_nearest2d_backward", notationFactors, k2dSized},
    {"aten::upsample_nearest3d_backward", notationFactors, k3dSized},
    {"aten::_upsample_nearest_exact1d_backward", notationFactors, k1dSized},
    {"aten::_upsample_nearest_exact2d_backward", notationFactors, k2dSized},
    {"aten::_upsample_nearest_exact3d_backward", notationFactors, k3dSized},
    {"aten::upsample_linear1d_backward", notationFactors, k1dSized},
    {"aten::upsample_bilinear2d_backward", notationFactors, k2dSized},
    {"aten::upsample_bicubic2d_backward", notationFactors, k2dSized},
    {"aten::upsample_trilinear3d_backward", notationFactors, k3dSized},
    {"aten::_upsample_bilinear2d_aa_backward", notationFactors, k2dSized},
    {"aten::_upsample_bicubic2d_aa_backward", notationFactors, k2dSized},
    {"aten::pixel_shuffle", notationFactors, "... [c] [h] [w] -> ... [c] [h] [w]; moved 0"},
    {"aten::pixel_unshuffle", notationFactors, "... [c] [h] [w] -> ... [c] [h] [w]; moved 0"},
    {"aten::im2col", notationFactors, "... [c] [h] [w] -> ... [k] [l]; linear-float 0"},
    {"aten::col2im", notationFactors, "... [k] [l] -> ... [c] [h] [w]; linear-float 0"},
    {"aten::grid_sampler", gridSamplerFactors, ""},
    {"aten::grid_sampler_2d", gridSamplerFactors, ""},
    {"aten::grid_sampler_3d", gridSamplerFactors, ""},
    {"aten::grid_sampler_2d_backward", notationFactors,
     "n [c] [h] [w], n [c] [h] [w], n [h] [w] [2] -> n [c] [h] [w], n [h] [w] [2]; linear-float 0"},
    {"aten::grid_sampler_3d_backward", notationFactors,
     "n [c] [d] [h] [w], n [c] [d] [h] [w], n [d] [h] [w] [3] -> n [c] [d] [h] [w], n [d] [h] [w] [3]; linear-float 0"},
});

}  // namespace

absl::Span<const Rule> poolingRules() { return kRules; }

}  // namespace dtorch
