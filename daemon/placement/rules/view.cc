#include <array>
#include <numeric>
#include <utility>

#include "daemon/placement/rule.h"

namespace dtorch {
namespace {

// One tensor in, one out; `from[d]` is the input dimension that output dimension d is, or kWhole.
Factors moving(const RuleCall& call, const std::vector<int>& from) {
  Factors factors;
  factors.movesOnly = true;
  factors.inputs.emplace_back(call.inputs[0]->shape.size(), Factors::kWhole);
  factors.outputs.emplace_back(from.size(), Factors::kWhole);
  for (std::size_t d = 0; d < from.size(); ++d) {
    if (from[d] == Factors::kWhole) continue;
    const int factor = factors.add();
    factors.inputs[0][static_cast<std::size_t>(from[d])] = factor;
    factors.outputs[0][d] = factor;
  }
  return factors;
}

std::vector<int> identity(std::size_t dims) {
  std::vector<int> from(dims);
  std::iota(from.begin(), from.end(), 0);
  return from;
}

absl::StatusOr<Factors> identityFactors(const RuleCall& call, absl::string_view) {
  return moving(call, identity(call.inputs[0]->shape.size()));
}

absl::StatusOr<Factors> transposeFactors(const RuleCall& call, absl::string_view detail) {
  std::vector<int> from = identity(call.inputs[0]->shape.size());
  if (from.size() < 2) return moving(call, from);
  int a = 0;
  int b = 1;
  if (detail == "last two") {
    a = static_cast<int>(from.size()) - 2;
    b = a + 1;
  } else if (detail == "arguments") {
    absl::StatusOr<int> first = call.dimension("dim0", from.size());
    if (!first.ok()) return first.status();
    absl::StatusOr<int> second = call.dimension("dim1", from.size());
    if (!second.ok()) return second.status();
    a = *first;
    b = *second;
  }
  std::swap(from[static_cast<std::size_t>(a)], from[static_cast<std::size_t>(b)]);
  return moving(call, from);
}

absl::StatusOr<Factors> permuteFactors(const RuleCall& call, absl::string_view) {
  absl::StatusOr<std::vector<int>> dims = call.dimensions("dims", call.inputs[0]->shape.size());
  if (!dims.ok()) return dims.status();
  return moving(call, *dims);
}

absl::StatusOr<Factors> unsqueezeFactors(const RuleCall& call, absl::string_view) {
  absl::StatusOr<int> dim = call.dimension("dim", call.inputs[0]->shape.size() + 1);
  if (!dim.ok()) return dim.status();
  std::vector<int> from = identity(call.inputs[0]->shape.size());
  from.insert(from.begin() + *dim, Factors::kWhole);
  return moving(call, from);
}

// Drops the dimensions named (all, without an argument) that have extent 1. A dimension that is named and kept must be
// whole: a shard of it may have extent 1 on some rank, which would drop it there.
absl::StatusOr<Factors> squeezeFactors(const RuleCall& call, absl::string_view) {
  const std::vector<std::int64_t>& shape = call.inputs[0]->shape;
  absl::StatusOr<std::vector<int>> dims = call.dimensions("dim", shape.size());
  if (!dims.ok()) return dims.status();
  std::vector<bool> dropped(shape.size(), false);
  for (const int dim : *dims) {
    if (!shape.empty() && shape[static_cast<std::size_t>(dim)] == 1) dropped[static_cast<std::size_t>(dim)] = true;
  }
  std::vector<int> from;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (!dropped[d]) from.push_back(static_cast<int>(d));
  }
  Factors factors = moving(call, from);
  for (const int dim : *dims) {
    if (shape.empty() || dropped[static_cast<std::size_t>(dim)]) continue;
    const int factor = factors.inputs[0][static_cast<std::size_t>(dim)];
    for (auto* tensor : {&factors.inputs[0], &factors.outputs[0]}) {
      for (int& f : *tensor) {
        if (f == factor) f = Factors::kWhole;
      }
    }
  }
  return factors;
}

// Stretched dimensions stay whole; the sizes become local ones.
absl::StatusOr<Factors> expandFactors(const RuleCall& call, absl::string_view) {
  const std::vector<std::int64_t>& in = call.inputs[0]->shape;
  const std::vector<std::int64_t>& out = call.outputs[0].shape;
  std::vector<int> from(out.size(), Factors::kWhole);
  for (std::size_t d = 0; d < in.size(); ++d) {
    const std::size_t o = out.size() - in.size() + d;
    if (in[d] == out[o]) from[o] = static_cast<int>(d);
  }
  Factors factors = moving(call, from);
  factors.sizeArguments = {call.position("size")};
  return factors;
}

// Dimensions that are there before and after, with the same number of elements on their left, pass through; those that
// are merged or split stay whole.
absl::StatusOr<Factors> reshapeFactors(const RuleCall& call, absl::string_view sizeArgument) {
  const std::vector<std::int64_t>& in = call.inputs[0]->shape;
  const std::vector<std::int64_t>& out = call.outputs[0].shape;
  std::vector<int> from(out.size(), Factors::kWhole);
  if (call.outputs[0].numel() != 0) {
    std::size_t i = 0;
    std::size_t o = 0;
    std::int64_t left = 1;
    std::int64_t right = 1;
    while (i < in.size() && o < out.size()) {
      if (left == right && in[i] == out[o]) {
        from[o] = static_cast<int>(i);
        left *= in[i++];
        right *= out[o++];
      } else if (left * in[i] <= right * out[o]) {
        left *= in[i++];
      } else {
        right *= out[o++];
      }
    }
  }
  Factors factors = moving(call, from);
  if (!sizeArgument.empty()) factors.sizeArguments = {call.position(std::string(sizeArgument))};
  return factors;
}

// The dimension of argument "dim" stays whole and, for select, disappears.
absl::StatusOr<Factors> partOfDimFactors(const RuleCall& call, absl::string_view detail) {
  absl::StatusOr<int> dim = call.dimension("dim", call.inputs[0]->shape.size());
  if (!dim.ok()) return dim.status();
  std::vector<int> from = identity(call.inputs[0]->shape.size());
  if (detail == "drops") {
    from.erase(from.begin() + *dim);
  } else {
    from[static_cast<std::size_t>(*dim)] = Factors::kWhole;
  }
  return moving(call, from);
}

constexpr std::array<Rule, 22> kRules = {{
    {"aten::clone", identityFactors, ""},
    {"aten::detach", identityFactors, ""},
    {"aten::alias", identityFactors, ""},
    {"aten::contiguous", identityFactors, ""},
    {"aten::t", transposeFactors, "first two"},
    {"aten::mT", transposeFactors, "last two"},
    {"aten::transpose.int", transposeFactors, "arguments"},
    {"aten::swapaxes", transposeFactors, "arguments"},
    {"aten::permute", permuteFactors, ""},
    {"aten::unsqueeze", unsqueezeFactors, ""},
    {"aten::squeeze", squeezeFactors, ""},
    {"aten::squeeze.dim", squeezeFactors, ""},
    {"aten::squeeze.dims", squeezeFactors, ""},
    {"aten::expand", expandFactors, ""},
    {"aten::broadcast_to", expandFactors, ""},
    {"aten::view", reshapeFactors, "size"},
    {"aten::_unsafe_view", reshapeFactors, "size"},
    {"aten::reshape", reshapeFactors, "shape"},
    {"aten::flatten.using_ints", reshapeFactors, ""},
    {"aten::select.int", partOfDimFactors, "drops"},
    {"aten::slice.Tensor", partOfDimFactors, "keeps"},
    {"aten::narrow", partOfDimFactors, "keeps"},
}};

}  // namespace

absl::Span<const Rule> viewRules() { return kRules; }

}  // namespace dtorch
