#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "daemon/placement/rule.h"

namespace dtorch {
namespace {

// Detail: "inputs -> output; linear; addends". Letters name factors, one a dimension; a letter without a place in the
// output is summed over. An addend of lower rank, or with an extent of 1, broadcasts.
absl::StatusOr<Factors> einsumFactors(const RuleCall& call, absl::string_view detail) {
  const std::vector<std::string> sections = absl::StrSplit(detail, ';');
  const std::vector<std::string> sides = absl::StrSplit(sections[0], " -> ");
  Factors factors;
  factors.reducedBy = {ReduceOp::kSum};
  std::vector<std::string> letters;
  std::vector<std::int64_t> extents;
  const auto factorOf = [&](const std::string& letter) {
    const auto it = std::find(letters.begin(), letters.end(), letter);
    if (it != letters.end()) return static_cast<int>(it - letters.begin());
    letters.push_back(letter);
    extents.push_back(-1);
    return factors.add();
  };
  const auto lettersOf = [](absl::string_view term) {
    return std::vector<std::string>(absl::StrSplit(absl::StripAsciiWhitespace(term), ' ', absl::SkipEmpty()));
  };
  std::vector<int> output;
  for (const std::string& letter : lettersOf(sides[1])) output.push_back(factorOf(letter));
  for (std::size_t d = 0; d < output.size(); ++d)
    extents[static_cast<std::size_t>(output[d])] = call.outputs[0].shape[d];

  std::size_t index = 0;
  for (const absl::string_view term : absl::StrSplit(sides[0], ',')) {
    if (index >= call.inputs.size()) return absl::UnimplementedError("one of its operands is a number");
    const std::vector<std::string> dims = lettersOf(term);
    const TensorMeta& meta = *call.inputs[index++];
    if (meta.shape.size() > dims.size())
      return absl::UnimplementedError(absl::StrCat("an operand has ", meta.shape.size(), " dimensions"));
    std::vector<int> ofInput;
    const std::size_t skipped = dims.size() - meta.shape.size();
    for (std::size_t d = 0; d < meta.shape.size(); ++d) {
      const int factor = factorOf(dims[skipped + d]);
      std::int64_t& extent = extents[static_cast<std::size_t>(factor)];
      if (extent < 0) extent = meta.shape[d];
      ofInput.push_back(extent == meta.shape[d] ? factor : Factors::kWhole);
    }
    factors.inputs.push_back(std::move(ofInput));
  }
  factors.outputs.push_back(std::move(output));

  if (sections.size() > 1) factors.linear = argumentSets(sections[1]);
  if (sections.size() > 2) {
    for (const std::vector<int>& addends : argumentSets(sections[2])) factors.addends = addends;
  }
  return factors;
}

// torch.matmul and torch.nn.functional.linear take any rank: the letters follow from it.
absl::StatusOr<Factors> matmulFactors(const RuleCall& call, absl::string_view) {
  const std::size_t left = call.inputs[0]->shape.size();
  const std::size_t right = call.inputs[1]->shape.size();
  const std::size_t batch = std::max<std::size_t>(std::max(left, right), 2) - 2;
  const auto batchLetters = [&](std::size_t dims) {
    std::string text;
    for (std::size_t d = dims < 2 ? 0 : dims - 2; d > 0; --d) absl::StrAppend(&text, "b", d, " ");
    return text;
  };
  const std::string detail =
      absl::StrCat(batchLetters(left), left > 1 ? "m " : "", "k, ", batchLetters(right), right > 1 ? "k n" : "k",
                   " -> ", batchLetters(batch + 2), left > 1 ? "m " : "", right > 1 ? "n" : "", "; 0|1");
  return einsumFactors(call, detail);
}

absl::StatusOr<Factors> linearFactors(const RuleCall& call, absl::string_view) {
  std::string batch;
  for (std::size_t d = 1; d < call.inputs[0]->shape.size(); ++d) absl::StrAppend(&batch, "b", d, " ");
  const bool bias = call.inputs.size() > 2;
  return einsumFactors(
      call, absl::StrCat(batch, "k, n k", bias ? ", n" : "", " -> ", batch, "n", bias ? "; 0 2|1 2; 2" : "; 0|1"));
}

constexpr std::array<Rule, 11> kRules = {{
    {"aten::mm", einsumFactors, "m k, k n -> m n; 0|1"},
    {"aten::bmm", einsumFactors, "b m k, b k n -> b m n; 0|1"},
    {"aten::mv", einsumFactors, "m k, k -> m; 0|1"},
    {"aten::dot", einsumFactors, "k, k -> ; 0|1"},
    {"aten::vdot", einsumFactors, "k, k -> ; 0|1"},
    {"aten::outer", einsumFactors, "m, n -> m n; 0|1"},
    {"aten::addmm", einsumFactors, "m n, m k, k n -> m n; 0 1|0 2; 0"},
    {"aten::addmv", einsumFactors, "m, m k, k -> m; 0 1|0 2; 0"},
    {"aten::baddbmm", einsumFactors, "b m n, b m k, b k n -> b m n; 0 1|0 2; 0"},
    {"aten::matmul", matmulFactors, ""},
    {"aten::linear", linearFactors, ""},
}};

}  // namespace

absl::Span<const Rule> matmulRules() { return kRules; }

}  // namespace dtorch
