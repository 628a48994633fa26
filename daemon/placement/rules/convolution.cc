#include <array>
#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/placement/notation.h"
#include "daemon/placement/rule.h"

namespace dtorch {
namespace {

// " [s2] [s1]": what the filter slides over.
std::string spatial(std::size_t dims, const char* word) {
  std::string text;
  for (std::size_t d = 0; d < dims; ++d) absl::StrAppend(&text, " [", word, d, "]");
  return text;
}

// Batch passes through; so do output channels, and input channels are summed over, where there is one group. Detail
// "transposed": the weight has input channels first.
absl::StatusOr<Factors> convolutionFactors(const RuleCall& call, absl::string_view detail) {
  const std::size_t dims = call.inputs[1]->shape.size() - 2;
  const bool batched = call.inputs[0]->shape.size() == dims + 2;
  const bool one = call.integer("groups", 1) == 1;
  const bool transposed = detail == "transposed" || call.flag("transposed");
  const std::string in = one ? "c" : "[c]";
  const std::string out = one ? "o" : "[o]";
  const std::string n = batched ? "n " : "";
  // A bias is added once a rank where channels are summed: it must be Partial, too.
  return notationFactors(
      call, absl::StrCat(n, in, spatial(dims, "x"), ", ", transposed ? in : out, " ", transposed ? out : in,
                         spatial(dims, "k"), ", ", out, " -> ", n, out, spatial(dims, "y"),
                         one ? "; c:sum; linear-float 0 2|1 2; addend 2; full c o" : ""));
}

// The gradient of the weight and of the bias is a sum over the batch.
absl::StatusOr<Factors> backwardFactors(const RuleCall& call, absl::string_view) {
  const std::size_t dims = call.inputs[1]->shape.size() - 2;
  const bool one = call.integer("groups", 1) == 1;
  const bool transposed = call.flag("transposed");
  const std::string in = one ? "c" : "[c]";
  if (call.inputs[1]->shape.size() != call.inputs[0]->shape.size()) return absl::UnimplementedError("no batch");
  const std::string weight = transposed ? absl::StrCat(in, " [o]") : absl::StrCat("[o] ", in);
  // What was not asked for is empty.
  const auto output = [&](std::size_t o, const std::string& term) {
    return call.outputs[o]->dtype == DType::kBool ? std::string("*") : term;
  };
  return notationFactors(
      call, absl::StrCat("n [o]", spatial(dims, "y"), ", n ", in, spatial(dims, "x"), ", ", weight, spatial(dims, "k"),
                         " -> ", output(0, absl::StrCat("n ", in, spatial(dims, "x"))), ", ",
                         output(1, absl::StrCat(weight, spatial(dims, "k"))), ", ", output(2, "[o]"),
                         "; n:sum; linear-float 0; full c n"));
}

constexpr std::array kRules = std::to_array<Rule>({
    {"aten::convolution", convolutionFactors, ""},
    {"aten::_convolution", convolutionFactors, ""},
    {"aten::conv1d", convolutionFactors, ""},
    {"aten::conv2d", convolutionFactors, ""},
    {"aten::conv3d", convolutionFactors, ""},
    {"aten::_convolution_mode", convolutionFactors, ""},
    {"aten::conv_transpose1d", convolutionFactors, "transposed"},
    {"aten::conv_transpose2d", convolutionFactors, "transposed"},
    {"aten::conv_transpose3d", convolutionFactors, "transposed"},
    {"aten::convolution_backward", backwardFactors, ""},
    {"aten::slow_conv3d", convolutionFactors, ""},
    {"aten::slow_conv3d_forward", convolutionFactors, ""},
    {"aten::thnn_conv2d", convolutionFactors, ""},
    {"aten::_slow_conv2d_forward", convolutionFactors, ""},
    {"aten::slow_conv_dilated2d", convolutionFactors, ""},
    {"aten::slow_conv_dilated3d", convolutionFactors, ""},
    {"aten::conv_tbc", notationFactors,
     "[t] b c, [k] c o, o -> [t] b o; c:sum; linear-float 0 2|1 2; addend 2; full c o"},
});

}  // namespace

absl::Span<const Rule> convolutionRules() { return kRules; }

}  // namespace dtorch
