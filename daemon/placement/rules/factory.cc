#include <array>
#include <vector>

#include "daemon/placement/notation.h"
#include "daemon/placement/program.h"
#include "daemon/placement/rule.h"
#include "dispatch/prepared_call.h"

namespace dtorch {
namespace {

bool isLikeItsInput(const RuleCall& call) {
  return call.inputs[0]->shape == call.outputs[0]->shape &&
         call.outputs[0]->strides == contiguousStrides(call.outputs[0]->shape);
}

// Strides that are given are those of the whole: parts are made without them.
absl::StatusOr<Factors> newStridedFactors(const RuleCall& call, absl::string_view) {
  if (!isLikeItsInput(call)) return absl::UnimplementedError("it is not contiguous, or not of its tensor's sizes");
  Factors factors;
  const std::vector<int> of = factors.addAll(call.inputs[0]->shape.size());
  factors.inputs = {of};
  factors.outputs = {of};
  factors.unread = {0};
  factors.combined.push_back({of,
                              [factors](const RuleCall& planned, std::int64_t) -> absl::StatusOr<Program> {
                                ProgramBuilder builder(absl::MakeConstSpan(planned.inputs), factors.inputs);
                                const std::uint32_t made = builder.map("aten::clone", 0, {MemoryFormat::kContiguous});
                                return builder.finish({builder.cast(made, planned.outputs[0]->dtype)});
                              },
                              {}});
  return factors;
}

// Of a tensor's dtype, of sizes that are given, as argument 1. Of the tensor's own sizes: split as it is. Of others:
// however it is split, the result is whole on every rank.
absl::StatusOr<Factors> newFactors(const RuleCall& call, absl::string_view) {
  if (isLikeItsInput(call)) {
    return notationFactors(call, "... -> ...; unread 0; sizes size=0");
  }
  Factors factors;
  factors.unread = {0};
  const std::vector<int> of = factors.addAll(call.inputs[0]->shape.size());
  factors.inputs = {of};
  factors.outputs = {std::vector<int>(call.outputs[0]->shape.size(), Factors::kWhole)};
  factors.combined.push_back({of,
                              [factors](const RuleCall& planned, std::int64_t) -> absl::StatusOr<Program> {
                                ProgramBuilder builder(absl::MakeConstSpan(planned.inputs), factors.inputs);
                                const std::uint32_t made =
                                    builder.run(nameOf(planned.schema.operator_name()), planned.arguments,
                                                {*planned.outputs[0], factors.outputs[0], {}});
                                return builder.finish({made});
                              },
                              {}});
  return factors;
}

// Factories without tensors are placed by the planner.
constexpr std::array kRules = std::to_array<Rule>({
    {"aten::new_zeros", newFactors, ""},
    {"aten::new_ones", newFactors, ""},
    {"aten::new_full", newFactors, ""},
    {"aten::new_empty", newFactors, ""},
    {"aten::new_empty_strided", newStridedFactors, ""},
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
