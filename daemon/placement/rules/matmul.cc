#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "daemon/placement/notation.h"
#include "daemon/placement/rule.h"

namespace dtorch {
namespace {

// torch.matmul and the like take any rank: the letters follow from it.
absl::StatusOr<Factors> matmulFactors(const RuleCall& call, absl::string_view) {
  const std::size_t left = call.inputs[0]->shape.size();
  const std::size_t right = call.inputs[1]->shape.size();
  return notationFactors(
      call, absl::StrCat(left > 2 ? "... " : "", left > 1 ? "m k" : "k", ", ", right > 2 ? "... " : "",
                         right > 1 ? "k n" : "k", " -> ", left > 2 || right > 2 ? "... " : "", left > 1 ? "m " : "",
                         right > 1 ? "n" : "", "; k:sum; linear 0|1"));
}

absl::StatusOr<Factors> linearFactors(const RuleCall& call, absl::string_view) {
  const bool vector = call.inputs[1]->shape.size() < 2;
  return notationFactors(call, vector ? "... k, k, * -> ...; k:sum; linear 0 2|1 2; addend 2"
                                      : "... k, n k, n -> ... n; k:sum; linear 0 2|1 2; addend 2");
}

// torch.inner: over the last dimensions of both.
absl::StatusOr<Factors> innerFactors(const RuleCall& call, absl::string_view) {
  if (call.inputs[0]->shape.empty() || call.inputs[1]->shape.empty()) {
    return notationFactors(call, "..., ... -> ...; linear 0|1");
  }
  std::vector<std::string> left;
  std::vector<std::string> right;
  for (std::size_t d = 0; d + 1 < call.inputs[0]->shape.size(); ++d) left.push_back(absl::StrCat("a", d));
  for (std::size_t d = 0; d + 1 < call.inputs[1]->shape.size(); ++d) right.push_back(absl::StrCat("b", d));
  const std::string a = absl::StrJoin(left, " ");
  const std::string b = absl::StrJoin(right, " ");
  return notationFactors(call, absl::StrCat(a, " k, ", b, " k -> ", a, " ", b, "; k:sum; linear 0|1"));
}

absl::StatusOr<Factors> tensordotFactors(const RuleCall& call, absl::string_view) {
  absl::StatusOr<std::vector<int>> left = call.dimensions("dims_self", call.inputs[0]->shape.size());
  absl::StatusOr<std::vector<int>> right = call.dimensions("dims_other", call.inputs[1]->shape.size());
  if (!left.ok()) return left.status();
  if (!right.ok()) return right.status();
  if (left->size() != right->size()) return absl::UnimplementedError("its lists of dimensions differ in length");
  const auto words = [](std::size_t dims, const std::vector<int>& summed, const char* own) {
    std::vector<std::string> result;
    for (std::size_t d = 0; d < dims; ++d) result.push_back(absl::StrCat(own, d));
    for (std::size_t s = 0; s < summed.size(); ++s) result[static_cast<std::size_t>(summed[s])] = absl::StrCat("k", s);
    return result;
  };
  const std::vector<std::string> a = words(call.inputs[0]->shape.size(), *left, "a");
  const std::vector<std::string> b = words(call.inputs[1]->shape.size(), *right, "b");
  std::vector<std::string> output;
  std::vector<std::string> reduced;
  for (const auto* side : {&a, &b}) {
    for (const std::string& word : *side) {
      if (word[0] != 'k') output.push_back(word);
    }
  }
  for (std::size_t s = 0; s < left->size(); ++s) reduced.push_back(absl::StrCat("k", s, ":sum"));
  return notationFactors(
      call, absl::StrCat(absl::StrJoin(a, " "), ", ", absl::StrJoin(b, " "), " -> ", absl::StrJoin(output, " "), "; ",
                         absl::StrJoin(reduced, " "), "; linear 0|1"));
}

// The equation is a notation already, but for its operands, which are one list, and for "...".
absl::StatusOr<Factors> einsumFactors(const RuleCall& call, absl::string_view) {
  const Value* equation = call.argument("equation");
  if (equation == nullptr || equation->as<std::string>() == nullptr) return absl::UnimplementedError("no equation");
  std::string text = *equation->as<std::string>();
  std::erase(text, ' ');
  const std::vector<std::string> sides = absl::StrSplit(text, "->");
  const std::vector<std::string> terms = absl::StrSplit(sides[0], ',');
  if (terms.size() != call.inputs.size() || text.find('.') != std::string::npos) {
    return absl::UnimplementedError("its equation has '...'");
  }
  std::string output;
  if (sides.size() > 1) {
    output = sides[1];
  } else {
    // Letters that occur once, in the order of the alphabet.
    for (const char letter : std::string("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")) {
      if (std::count(sides[0].begin(), sides[0].end(), letter) == 1) output += letter;
    }
  }
  Factors factors;
  std::string letters;
  const auto factorsOf = [&](const std::string& term) {
    std::vector<int> dims;
    for (const char letter : term) {
      std::size_t at = letters.find(letter);
      if (at == std::string::npos) {
        at = letters.size();
        letters += letter;
        factors.add();
      }
      dims.push_back(static_cast<int>(at));
    }
    return dims;
  };
  for (std::size_t t = 0; t < terms.size(); ++t) {
    factors.inputs.push_back(factorsOf(terms[t]));
    if (factors.inputs[t].size() != call.inputs[t]->shape.size()) return absl::UnimplementedError("an operand's rank");
    factors.linear.push_back({static_cast<int>(t)});
  }
  factors.outputs = {factorsOf(output)};
  // A letter twice in a term is a diagonal; an extent of 1 broadcasts.
  for (int f = 0; f < factors.count; ++f) {
    bool whole = false;
    std::int64_t extent = -1;
    for (std::size_t t = 0; t < terms.size(); ++t) {
      int seen = 0;
      for (std::size_t d = 0; d < factors.inputs[t].size(); ++d) {
        if (factors.inputs[t][d] != f) continue;
        ++seen;
        whole = whole || (extent >= 0 && extent != call.inputs[t]->shape[d]);
        extent = call.inputs[t]->shape[d];
      }
      whole = whole || seen > 1;
    }
    const bool inOutput =
        std::find(factors.outputs[0].begin(), factors.outputs[0].end(), f) != factors.outputs[0].end();
    if (!inOutput) factors.reduced.push_back({f, ReduceOp::kSum});
    if (!whole) continue;
    for (auto* tensors : {&factors.inputs, &factors.outputs}) {
      for (std::vector<int>& dims : *tensors) std::replace(dims.begin(), dims.end(), f, Factors::kWhole);
    }
  }
  return factors;
}

// A `self` that broadcasts is not broadcast to no rows.
absl::StatusOr<Factors> addmvFactors(const RuleCall& call, absl::string_view detail) {
  return notationFactors(call, absl::StrCat(detail, call.inputs[0]->shape != call.outputs[0]->shape ? "; full m" : ""));
}

constexpr std::array kRules = std::to_array<Rule>({
    {"aten::mm", notationFactors, "m k, k n -> m n; k:sum; linear 0|1"},
    {"aten::_int_mm", notationFactors, "m k, k n -> m n; k:sum"},
    {"aten::bmm", notationFactors, "b m k, b k n -> b m n; k:sum; linear 0|1"},
    {"aten::mv", notationFactors, "m k, k -> m; k:sum; linear 0|1"},
    {"aten::dot", notationFactors, "k, k -> ; k:sum; linear 0|1"},
    {"aten::vdot", notationFactors, "k, k -> ; k:sum; linear 0|1"},
    {"aten::outer", notationFactors, "m, n -> m n; linear 0|1"},
    {"aten::ger", notationFactors, "m, n -> m n; linear 0|1"},
    {"aten::inner", innerFactors, ""},
    {"aten::addmm", notationFactors, "m n, m k, k n -> m n; k:sum; linear 0 1|0 2; addend 0"},
    {"aten::_addmm_activation", notationFactors, "m n, m [k], [k] n -> m n"},
    {"aten::addmv", addmvFactors, "m, m k, k -> m; k:sum; linear 0 1|0 2; addend 0"},
    {"aten::addr", notationFactors, "m n, m, n -> m n; linear 0 1|0 2"},
    {"aten::baddbmm", notationFactors, "b m n, b m k, b k n -> b m n; k:sum; linear 0 1|0 2; addend 0"},
    {"aten::matmul", matmulFactors, ""},
    {"aten::linalg_matmul", matmulFactors, ""},
    {"aten::linear", linearFactors, ""},
    {"dtorch::silu_linear_chunk", notationFactors, "... k, [n] k, [n] -> ... [n]; k:sum; linear 1 2; addend 2"},
    {"aten::einsum", einsumFactors, ""},
    {"aten::tensordot", tensordotFactors, ""},
    {"aten::bilinear", notationFactors, "... [i], ... [j], o [i] [j], o -> ... o"},
    {"aten::cdist", notationFactors, "... m [k], ... n [k] -> ... m n"},
    {"aten::_cdist_forward", notationFactors, "... m [k], ... n [k] -> ... m n"},
    {"aten::_euclidean_dist", notationFactors, "m [k], n [k] -> m n"},
    {"aten::matrix_power", notationFactors, "... [n] [n] -> ... [n] [n]"},
    {"aten::linalg_matrix_power", notationFactors, "... [n] [n] -> ... [n] [n]"},
    {"aten::gru_cell", notationFactors, "b [i], b [h], *, *, *, * -> b [h]"},
    {"aten::rnn_tanh_cell", notationFactors, "b [i], b [h], *, *, *, * -> b [h]"},
    {"aten::rnn_relu_cell", notationFactors, "b [i], b [h], *, *, *, * -> b [h]"},
});

}  // namespace

absl::Span<const Rule> matmulRules() { return kRules; }

}  // namespace dtorch
