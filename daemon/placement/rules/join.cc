#include <array>

#include "daemon/placement/rule.h"

namespace dtorch {
namespace {

// Tensors of a list, joined along a dimension, which stays whole. Detail: "cat"; "stack": the dimension is new;
// "h", "v", "d", "column": as torch.hstack and the like.
absl::StatusOr<Factors> joinFactors(const RuleCall& call, absl::string_view detail) {
  const std::size_t rank = call.outputs[0]->shape.size();
  std::size_t dim = 0;
  if (detail == "cat" || detail == "stack") {
    absl::StatusOr<int> given = call.dimension("dim", rank);
    if (!given.ok()) return given.status();
    dim = static_cast<std::size_t>(*given);
  } else if (detail == "h") {
    dim = rank > 1 ? 1 : 0;
  } else if (detail == "d") {
    dim = 2;
  } else if (detail == "column") {
    dim = 1;
  }
  Factors factors;
  std::vector<int> output = factors.addAll(rank);
  if (dim < rank) output[dim] = Factors::kWhole;
  std::vector<int> all;
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    const TensorMeta& input = *call.inputs[i];
    std::vector<int> of;
    if (input.shape.size() == rank) {
      of = output;
    } else if (detail == "stack" && input.shape.size() + 1 == rank) {
      of = output;
      of.erase(of.begin() + static_cast<std::ptrdiff_t>(dim));
    } else {
      // Of fewer dimensions: torch.cat passes over an empty one, the others add dimensions to it.
      of.assign(input.shape.size(), Factors::kWhole);
      if (input.numel() > 0) output.assign(rank, Factors::kWhole);
    }
    factors.inputs.push_back(std::move(of));
    all.push_back(static_cast<int>(i));
  }
  factors.outputs = {output};
  factors.moved = {all};
  return factors;
}

// Each result is its input, stretched to the shape of all.
absl::StatusOr<Factors> broadcastFactors(const RuleCall& call, absl::string_view) {
  Factors factors;
  const std::size_t rank = call.outputs[0]->shape.size();
  std::vector<int> output = factors.addAll(rank);
  for (const TensorMeta* input : call.inputs) {
    std::vector<int> of;
    for (std::size_t d = 0; d < input->shape.size(); ++d) {
      const std::size_t o = rank - input->shape.size() + d;
      of.push_back(input->shape[d] == call.outputs[0]->shape[o] ? output[o] : Factors::kWhole);
    }
    factors.inputs.push_back(std::move(of));
  }
  factors.outputs.assign(call.outputs.size(), output);
  return factors;
}

constexpr std::array kRules = std::to_array<Rule>({
    {"aten::cat", joinFactors, "cat"},
    {"aten::concat", joinFactors, "cat"},
    {"aten::concatenate", joinFactors, "cat"},
    {"aten::stack", joinFactors, "stack"},
    {"aten::_stack", joinFactors, "stack"},
    {"aten::hstack", joinFactors, "h"},
    {"aten::vstack", joinFactors, "v"},
    {"aten::row_stack", joinFactors, "v"},
    {"aten::dstack", joinFactors, "d"},
    {"aten::column_stack", joinFactors, "column"},
    {"aten::broadcast_tensors", broadcastFactors, ""},
});

}  // namespace

absl::Span<const Rule> joinRules() { return kRules; }

}  // namespace dtorch
