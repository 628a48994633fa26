#include <algorithm>
#include <array>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/placement/notation.h"
#include "daemon/placement/rule.h"

namespace dtorch {
namespace {

// Input 0's elements, moved; `from[d]` is the input dimension that output dimension d is, or kWhole.
Factors moving(const RuleCall& call, const std::vector<int>& from) {
  Factors factors;
  factors.moved = {{0}};
  factors.inputs.emplace_back(call.inputs[0]->shape.size(), Factors::kWhole);
  factors.outputs.assign(call.outputs.size(), std::vector<int>(from.size(), Factors::kWhole));
  for (std::size_t d = 0; d < from.size(); ++d) {
    const auto dim = static_cast<std::size_t>(from[d]);
    if (from[d] == Factors::kWhole || dim >= factors.inputs[0].size()) continue;  // it broadcasts
    const int factor = factors.add();
    factors.inputs[0][dim] = factor;
    for (std::vector<int>& output : factors.outputs) output[d] = factor;
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

// Detail: "first two", "last two", "reverse", or which arguments name the two.
absl::StatusOr<Factors> transposeFactors(const RuleCall& call, absl::string_view detail) {
  std::vector<int> from = identity(call.inputs[0]->shape.size());
  if (detail == "reverse") {
    std::reverse(from.begin(), from.end());
    return moving(call, from);
  }
  if (from.size() < 2) return moving(call, from);
  int a = 0;
  int b = 1;
  if (detail == "last two") {
    a = static_cast<int>(from.size()) - 2;
    b = a + 1;
  } else if (absl::StrContains(detail, "0")) {
    absl::StatusOr<int> first = call.dimension(detail, from.size());
    if (!first.ok()) return first.status();
    absl::StatusOr<int> second = call.dimension(detail == "axis0" ? "axis1" : "dim1", from.size());
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

// The dimensions of "source" go to "destination", the others keep their order.
absl::StatusOr<Factors> moveDimFactors(const RuleCall& call, absl::string_view) {
  const std::size_t rank = call.inputs[0]->shape.size();
  absl::StatusOr<std::vector<int>> source = call.dimensions("source", rank);
  absl::StatusOr<std::vector<int>> destination = call.dimensions("destination", rank);
  if (!source.ok()) return source.status();
  if (!destination.ok()) return destination.status();
  if (source->size() != destination->size()) return absl::UnimplementedError("its lists differ in length");
  std::vector<int> from(rank, -1);
  for (std::size_t i = 0; i < source->size(); ++i) from[static_cast<std::size_t>((*destination)[i])] = (*source)[i];
  int next = 0;
  for (int& place : from) {
    if (place >= 0) continue;
    while (std::find(source->begin(), source->end(), next) != source->end()) ++next;
    place = next++;
  }
  return moving(call, from);
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
    if (shape[static_cast<std::size_t>(dim)] == 1) dropped[static_cast<std::size_t>(dim)] = true;
  }
  std::vector<int> from;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (!dropped[d]) from.push_back(static_cast<int>(d));
  }
  Factors factors = moving(call, from);
  for (const int dim : *dims) {
    if (dropped[static_cast<std::size_t>(dim)]) continue;
    const int factor = factors.inputs[0][static_cast<std::size_t>(dim)];
    for (auto* tensor : {&factors.inputs[0], &factors.outputs[0]}) {
      std::replace(tensor->begin(), tensor->end(), factor, Factors::kWhole);
    }
  }
  return factors;
}

// Stretched dimensions stay whole; the sizes become local ones. Detail: the argument that holds them; "other": those of
// a second tensor, which must then lie as the result does.
absl::StatusOr<Factors> expandFactors(const RuleCall& call, absl::string_view detail) {
  const std::vector<std::int64_t>& in = call.inputs[0]->shape;
  const std::vector<std::int64_t>& out = call.outputs[0]->shape;
  std::vector<int> from(out.size(), Factors::kWhole);
  for (std::size_t d = 0; d < in.size(); ++d) {
    const std::size_t o = out.size() - in.size() + d;
    if (in[d] == out[o]) from[o] = static_cast<int>(d);
  }
  Factors factors = moving(call, from);
  // A dimension that is new, or stretched, is sharded by making each rank's part only.
  for (int& factor : factors.outputs[0]) {
    if (factor == Factors::kWhole && detail == "other") factor = factors.add();
  }
  if (detail == "other") {
    factors.inputs.push_back(factors.outputs[0]);
  } else {
    factors.sizes = {{call.position(detail), 0, -1}};
  }
  return factors;
}

// Dimensions between two places where both shapes have the same number of elements on their left are one group. The
// first dimension of each side of a group may be split where the parts begin and end at whole indices of both.
// Detail: the argument that holds the sizes; "other": the result has those of a second tensor, and lies as it does.
absl::StatusOr<Factors> reshapeFactors(const RuleCall& call, absl::string_view detail) {
  const std::vector<std::int64_t>& in = call.inputs[0]->shape;
  const std::vector<std::int64_t>& out = call.outputs[0]->shape;
  Factors factors = moving(call, std::vector<int>(out.size(), Factors::kWhole));
  if (call.outputs[0]->numel() != 0) {
    std::size_t i = 0;
    std::size_t o = 0;
    while (i < in.size() && o < out.size()) {
      // An extent of 1 on one side has no counterpart.
      if ((in[i] == 1) != (out[o] == 1)) {
        ++(in[i] == 1 ? i : o);
        continue;
      }
      const std::size_t firstIn = i;
      const std::size_t firstOut = o;
      std::int64_t left = in[i++];
      std::int64_t right = out[o++];
      while (left != right) {
        if (left < right) {
          left *= in[i++];
        } else {
          right *= out[o++];
        }
      }
      // The outermost of a group are split together: their greatest common divisor is the factor.
      const std::int64_t extent = std::gcd(in[firstIn], out[firstOut]);
      if (extent != std::min(in[firstIn], out[firstOut])) continue;
      const int factor = factors.add();
      factors.inputs[0][firstIn] = factor;
      factors.outputs[0][firstOut] = factor;
      if (in[firstIn] != extent) factors.blocks.push_back({false, 0, static_cast<int>(firstIn), in[firstIn] / extent});
      if (out[firstOut] != extent) {
        factors.blocks.push_back({true, 0, static_cast<int>(firstOut), out[firstOut] / extent});
      }
    }
  }
  if (detail == "other") {
    factors.inputs.push_back(factors.outputs[0]);
  } else if (!detail.empty()) {
    factors.sizes = {{call.position(detail), 0, -1}};
  }
  return factors;
}

// One dimension becomes several, the first of which may be split.
absl::StatusOr<Factors> unflattenFactors(const RuleCall& call, absl::string_view) {
  absl::StatusOr<int> dim = call.dimension("dim", call.inputs[0]->shape.size());
  if (!dim.ok()) return dim.status();
  std::vector<int> from = identity(call.inputs[0]->shape.size());
  const std::size_t more = call.outputs[0]->shape.size() - call.inputs[0]->shape.size();
  from[static_cast<std::size_t>(*dim)] = Factors::kWhole;
  from.insert(from.begin() + *dim, more, Factors::kWhole);
  return moving(call, from);
}

// The dimension of argument "dim" stays whole and "drops", "keeps" (its extent may change) or "adds" one at the end.
absl::StatusOr<Factors> partOfDimFactors(const RuleCall& call, absl::string_view detail) {
  absl::StatusOr<int> dim =
      call.dimension(call.position("dimension") >= 0 ? "dimension" : "dim", call.inputs[0]->shape.size());
  if (!dim.ok()) return dim.status();
  std::vector<int> from = identity(call.inputs[0]->shape.size());
  if (detail == "drops") {
    from.erase(from.begin() + *dim);
  } else {
    from[static_cast<std::size_t>(*dim)] = Factors::kWhole;
    if (detail == "adds") from.push_back(Factors::kWhole);
  }
  return moving(call, from);
}

// The gradient of such a part: of the input's sizes, zero but for the part. Linear.
absl::StatusOr<Factors> partBackwardFactors(const RuleCall& call, absl::string_view detail) {
  absl::StatusOr<int> dim = call.dimension("dim", call.outputs[0]->shape.size());
  if (!dim.ok()) return dim.status();
  std::vector<int> from = identity(call.outputs[0]->shape.size());
  if (detail == "drops") {
    for (std::size_t d = static_cast<std::size_t>(*dim) + 1; d < from.size(); ++d) --from[d];
  }
  from[static_cast<std::size_t>(*dim)] = Factors::kWhole;
  // A gradient of fewer dimensions is broadcast.
  const std::size_t rank = from.size() - (detail == "drops" ? 1 : 0) + (detail == "adds" ? 1 : 0);
  if (call.inputs[0]->shape.size() != rank) return absl::UnimplementedError("its gradient has other dimensions");
  Factors factors = moving(call, from);
  factors.moved.clear();
  factors.linear = {{0}};
  factors.sizes = {{call.position("input_sizes"), 0, -1}};
  return factors;
}

// A part replaced: self and src, which differ in that dimension.
absl::StatusOr<Factors> partScatterFactors(const RuleCall& call, absl::string_view detail) {
  absl::StatusOr<int> dim = call.dimension("dim", call.inputs[0]->shape.size());
  if (!dim.ok()) return dim.status();
  Factors factors;
  std::vector<int> of = factors.addAll(call.inputs[0]->shape.size());
  of[static_cast<std::size_t>(*dim)] = Factors::kWhole;
  std::vector<int> source = of;
  if (detail == "drops") source.erase(source.begin() + *dim);
  factors.inputs = {of, source};
  factors.outputs = {of};
  factors.moved = {{0, 1}};
  return factors;
}

// The two dimensions of a diagonal stay whole; it is the last dimension of the result.
absl::StatusOr<Factors> diagonalFactors(const RuleCall& call, absl::string_view) {
  const std::size_t rank = call.inputs[0]->shape.size();
  absl::StatusOr<int> first = call.dimension("dim1", rank);
  absl::StatusOr<int> second = call.dimension("dim2", rank);
  if (!first.ok()) return first.status();
  if (!second.ok()) return second.status();
  std::vector<int> from;
  for (int d = 0; d < static_cast<int>(rank); ++d) {
    if (d != *first && d != *second) from.push_back(d);
  }
  from.push_back(Factors::kWhole);
  return moving(call, from);
}

// Each dimension that is repeated once passes through; new and repeated ones stay whole.
absl::StatusOr<Factors> repeatFactors(const RuleCall& call, absl::string_view) {
  const std::vector<std::int64_t>& in = call.inputs[0]->shape;
  const std::vector<std::int64_t>& out = call.outputs[0]->shape;
  std::vector<int> from(out.size(), Factors::kWhole);
  if (out.size() < in.size()) return absl::UnimplementedError("its result has fewer dimensions");
  for (std::size_t d = 0; d < in.size(); ++d) {
    const std::size_t o = out.size() - in.size() + d;
    if (in[d] == out[o] && in[d] > 1) from[o] = static_cast<int>(d);
  }
  return moving(call, from);
}

// Padded dimensions stay whole. What is padded with is added once a rank, unless it is zero.
absl::StatusOr<Factors> padFactors(const RuleCall& call, absl::string_view) {
  const Value* given = call.argument("pad");
  const auto* pad = given == nullptr ? nullptr : given->as<std::vector<std::int64_t>>();
  const std::size_t rank = call.inputs[0]->shape.size();
  if (pad == nullptr || pad->size() > 2 * rank) return absl::UnimplementedError("its padding");
  std::vector<int> from = identity(rank);
  for (std::size_t p = 0; p < pad->size(); ++p) {
    if ((*pad)[p] != 0) from[rank - 1 - p / 2] = Factors::kWhole;
  }
  Factors factors = moving(call, from);
  factors.moved.clear();
  // Kernels of the other modes do not take tensors without elements.
  const Value* mode = call.argument("mode");
  const auto* name = mode == nullptr ? nullptr : mode->as<std::string>();
  if (name != nullptr && *name != "constant") {
    for (int factor = 0; factor < factors.count; ++factor) factors.neverEmpty.push_back(factor);
  }
  return factors;
}

// Of the last dimension, into the last two of the result.
absl::StatusOr<Factors> diagEmbedFactors(const RuleCall& call, absl::string_view) {
  const std::size_t rank = call.outputs[0]->shape.size();
  absl::StatusOr<int> first = call.dimension("dim1", rank);
  absl::StatusOr<int> second = call.dimension("dim2", rank);
  if (!first.ok()) return first.status();
  if (!second.ok()) return second.status();
  std::vector<int> from;
  int next = 0;
  for (int d = 0; d < static_cast<int>(rank); ++d)
    from.push_back(d == *first || d == *second ? Factors::kWhole : next++);
  Factors factors = moving(call, from);
  factors.moved.clear();
  factors.linear = {{0}};
  return factors;
}

constexpr std::array kRules = std::to_array<Rule>({
    {"aten::detach", identityFactors, ""},
    {"aten::alias", identityFactors, ""},
    {"aten::contiguous", identityFactors, ""},
    {"aten::lift", identityFactors, ""},
    {"aten::lift_fresh", identityFactors, ""},
    {"aten::t", transposeFactors, "first two"},
    {"aten::numpy_T", transposeFactors, "reverse"},
    {"aten::mT", transposeFactors, "last two"},
    {"aten::transpose", transposeFactors, "dim0"},
    {"aten::swapdims", transposeFactors, "dim0"},
    {"aten::swapaxes", transposeFactors, "axis0"},
    {"aten::permute", permuteFactors, ""},
    {"aten::movedim", moveDimFactors, ""},
    {"aten::moveaxis", moveDimFactors, ""},
    {"aten::unsqueeze", unsqueezeFactors, ""},
    {"aten::squeeze", squeezeFactors, ""},
    {"aten::expand", expandFactors, "size"},
    {"aten::broadcast_to", expandFactors, "size"},
    {"aten::expand_as", expandFactors, "other"},
    {"aten::view", reshapeFactors, "size"},
    {"aten::_unsafe_view", reshapeFactors, "size"},
    {"aten::view.dtype", notationFactors, "... [x] -> ... [x]"},
    {"aten::reshape", reshapeFactors, "shape"},
    {"aten::view_as", reshapeFactors, "other"},
    {"aten::reshape_as", reshapeFactors, "other"},
    {"aten::flatten", reshapeFactors, ""},
    {"aten::ravel", reshapeFactors, ""},
    {"aten::unflatten", unflattenFactors, ""},
    {"aten::atleast_1d", reshapeFactors, ""},
    {"aten::atleast_2d", reshapeFactors, ""},
    {"aten::atleast_3d", reshapeFactors, ""},
    {"aten::select", partOfDimFactors, "drops"},
    {"aten::slice", partOfDimFactors, "keeps"},
    {"aten::narrow", partOfDimFactors, "keeps"},
    {"aten::unfold", partOfDimFactors, "adds"},
    {"aten::split", partOfDimFactors, "keeps"},
    {"aten::split_with_sizes", partOfDimFactors, "keeps"},
    {"aten::unsafe_split", partOfDimFactors, "keeps"},
    {"aten::unsafe_split_with_sizes", partOfDimFactors, "keeps"},
    {"aten::chunk", partOfDimFactors, "keeps"},
    {"aten::unsafe_chunk", partOfDimFactors, "keeps"},
    {"aten::tensor_split.sections", partOfDimFactors, "keeps"},
    {"aten::tensor_split.indices", partOfDimFactors, "keeps"},
    {"aten::unbind", partOfDimFactors, "drops"},
    {"aten::slice_backward", partBackwardFactors, "keeps"},
    {"aten::select_backward", partBackwardFactors, "drops"},
    {"aten::unfold_backward", partBackwardFactors, "adds"},
    {"aten::slice_scatter", partScatterFactors, "keeps"},
    {"aten::select_scatter", partScatterFactors, "drops"},
    {"aten::diagonal", diagonalFactors, ""},
    {"aten::linalg_diagonal", diagonalFactors, ""},
    {"aten::diag_embed", diagEmbedFactors, ""},
    {"aten::repeat", repeatFactors, ""},
    {"aten::tile", repeatFactors, ""},
    {"aten::constant_pad_nd", padFactors, ""},
    {"aten::pad", padFactors, ""},
    {"aten::repeat_interleave.self_int", partOfDimFactors, "keeps"},
});

}  // namespace

absl::Span<const Rule> viewRules() { return kRules; }

}  // namespace dtorch
