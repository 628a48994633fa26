#include <array>
#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/placement/notation.h"
#include "daemon/placement/rule.h"

namespace dtorch {
namespace {

// The term of output `o`; what was not asked for (output_mask) is empty.
std::string asked(const RuleCall& call, std::size_t o, const std::string& term) {
  return call.outputs[o]->dtype == DType::kBool ? "*" : term;
}

// The last dimensions, as many as argument `normalized_shape` has, are normalised and stay whole; the others pass
// through. Detail: what the inputs and outputs are, with N for the normalised dimensions and S for as many of extent 1.
absl::StatusOr<Factors> lastDimsFactors(const RuleCall& call, absl::string_view detail) {
  const Value* shape = call.argument("normalized_shape");
  const auto* normalized = shape == nullptr ? nullptr : shape->as<std::vector<std::int64_t>>();
  if (normalized == nullptr) return absl::UnimplementedError("no normalized_shape");
  std::string notation;
  for (const char letter : detail) {
    if (letter != 'N' && letter != 'S') {
      notation += letter;
      continue;
    }
    for (std::size_t d = 0; d < normalized->size(); ++d) {
      absl::StrAppend(&notation, letter == 'N' ? absl::StrCat("[n", d, "]") : "1",
                      d + 1 < normalized->size() ? " " : "");
    }
  }
  return notationFactors(call, notation);
}

// Channels pass through; batch does, unless statistics are taken over it. Detail: "sample", "training": which of both,
// whatever the arguments say.
absl::StatusOr<Factors> batchNormFactors(const RuleCall& call, absl::string_view detail) {
  const std::size_t dims = call.inputs[0]->shape.size();
  if (dims < 2) return absl::UnimplementedError("its input has fewer than two dimensions");
  // Without running statistics they are taken of the batch in any case.
  const bool given = call.input("running_mean") >= 0;
  const bool training = detail != "sample" && (detail == "training" || !given || call.flag("training"));
  std::string spatial;
  for (std::size_t d = 2; d < dims; ++d) absl::StrAppend(&spatial, " [s", d, "]");
  const std::string batch = training ? "[n]" : "n";
  const std::string x = absl::StrCat(batch, " c", spatial);
  std::string notation = absl::StrCat(x, ", c, c, c, c -> ", x);
  for (std::size_t o = 1; o < call.outputs.size(); ++o) {
    // Statistics that are not taken are empty.
    absl::StrAppend(&notation, ", ",
                    call.outputs[o]->shape == call.inputs[0]->shape        ? x
                    : call.outputs[o]->numel() == call.inputs[0]->shape[1] ? "c"
                                                                           : "[e]");
  }
  return notationFactors(call, notation + "; full c");
}

absl::StatusOr<Factors> batchNormBackwardFactors(const RuleCall& call, absl::string_view) {
  const std::size_t dims = call.inputs[0]->shape.size();
  if (dims < 2) return absl::UnimplementedError("its input has fewer than two dimensions");
  std::string spatial;
  for (std::size_t d = 2; d < dims; ++d) absl::StrAppend(&spatial, " [s", d, "]");
  const bool training = call.flag("train", true);
  const std::string x = absl::StrCat(training ? "[n]" : "n", " c", spatial);
  // Where statistics are given, the gradients of weight and bias are sums over the batch.
  return notationFactors(
      call, absl::StrCat(x, ", ", x, ", c, c, c, c, c -> ", asked(call, 0, x), ", ", asked(call, 1, "c"), ", ",
                         asked(call, 2, "c"), training ? "; full c" : "; n:sum; full c n"));
}

// Groups are of channels, so that these stay whole; batch passes through, its size being argument N.
absl::StatusOr<Factors> groupNormFactors(const RuleCall& call, absl::string_view detail) {
  std::string x = "n [c]";
  for (std::size_t d = 2; d < call.inputs[0]->shape.size(); ++d) absl::StrAppend(&x, " [s", d, "]");
  if (detail == "composite") return notationFactors(call, absl::StrCat(x, ", [c], [c] -> ", x));
  if (detail == "native") return notationFactors(call, absl::StrCat(x, ", [c], [c] -> ", x, ", n [g]; sizes N=0.0"));
  // Without the first gradient nothing has the size of this rank's batch.
  if (asked(call, 0, x) != x) return absl::UnimplementedError("it does not return the input's gradient");
  return notationFactors(
      call, absl::StrCat(x, ", ", x, ", n [g], n [g], [c] -> ", asked(call, 0, x), ", ", asked(call, 1, "[c]"), ", ",
                         asked(call, 2, "[c]"), "; n:sum", asked(call, 0, x) == x ? "; sizes N=0.0" : ""));
}

absl::StatusOr<Factors> layerNormBackwardFactors(const RuleCall& call, absl::string_view) {
  const bool rms = call.outputs.size() == 2;
  const std::string inputs = rms ? "... N, ... N, ... S, N" : "... N, ... N, ... S, ... S, N, N";
  absl::StatusOr<Factors> factors =
      lastDimsFactors(call, absl::StrCat(inputs, " -> ", asked(call, 0, "... N"), ", ", asked(call, 1, "N"),
                                         rms ? "" : absl::StrCat(", ", asked(call, 2, "N"))));
  if (!factors.ok()) return factors.status();
  // Each row adds to the gradients of weight and bias.
  for (const int factor : factors->inputs[0]) {
    if (factor != Factors::kWhole) factors->reduced.push_back({factor, ReduceOp::kSum});
  }
  return factors;
}

constexpr std::array kRules = std::to_array<Rule>({
    {"aten::layer_norm", lastDimsFactors, "... N, N, N -> ... N"},
    {"aten::native_layer_norm", lastDimsFactors, "... N, N, N -> ... N, ... S, ... S"},
    {"aten::native_layer_norm_backward", layerNormBackwardFactors, ""},
    {"dtorch::layer_norm_mul_add", lastDimsFactors, "... N, ... N, ... N -> ... N; linear 1 2"},
    {"aten::rms_norm", lastDimsFactors, "... N, N -> ... N"},
    {"aten::_fused_rms_norm", lastDimsFactors, "... N, N -> ... N, ... S"},
    {"aten::_fused_rms_norm_backward", layerNormBackwardFactors, ""},
    {"aten::batch_norm", batchNormFactors, ""},
    {"aten::native_batch_norm", batchNormFactors, ""},
    {"aten::_native_batch_norm_legit", batchNormFactors, ""},
    {"aten::_native_batch_norm_legit_functional", batchNormFactors, ""},
    {"aten::_native_batch_norm_legit_no_training", batchNormFactors, "sample"},
    {"aten::_batch_norm_with_update", batchNormFactors, "training"},
    {"aten::_batch_norm_no_update", batchNormFactors, "sample"},
    {"aten::native_batch_norm_backward", batchNormBackwardFactors, ""},
    {"aten::group_norm", groupNormFactors, "composite"},
    {"aten::native_group_norm", groupNormFactors, "native"},
    {"aten::native_group_norm_backward", groupNormFactors, "backward"},
});

}  // namespace

absl::Span<const Rule> normalizationRules() { return kRules; }

}  // namespace dtorch
