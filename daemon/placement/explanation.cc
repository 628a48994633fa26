#include "daemon/placement/explanation.h"

#include <algorithm>
#include <string>

#include "proto/codec.h"

namespace dtorch {
namespace {

// Programs have more than anybody reads.
constexpr std::size_t kMaxCandidates = 32;
// Nor of long lists so many tensors, over all candidates.
constexpr std::size_t kMaxShown = 8192;

// Row `r` of each element, put together: placements of all tensors of the call along one mesh dimension.
void addRow(const OperatorRule& rule, std::size_t r, std::size_t inputs, std::size_t outputs, v1::Explanation* wire) {
  std::vector<Placement> in(inputs);
  std::vector<Placement> out(outputs);
  for (const RuledElement& ruled : rule.elements()) {
    if (ruled.rows.empty()) return;
    const Signature& row = ruled.rows[r < ruled.rows.size() ? r : 0];
    for (std::size_t i = 0; i < ruled.element.inputs.size(); ++i) in[ruled.element.inputs[i]] = row.inputs[i];
    for (std::size_t o = 0; o < ruled.element.outputs.size(); ++o) {
      if (ruled.element.outputs[o] != RuleElement::kNoOutput) out[ruled.element.outputs[o]] = row.outputs[o];
    }
    // What is given as out= lies as the result does.
    for (const auto& [output, input] : ruled.element.written) in[input] = row.outputs[output];
  }
  v1::RuleRow* wireRow = wire->add_rows();
  toWire(in, wireRow->mutable_inputs());
  toWire(out, wireRow->mutable_outputs());
}

}  // namespace

void toWire(const Redistribution& redistribution, v1::PlannedRedistribution* wire) {
  wire->set_input(redistribution.input);
  toWire(redistribution.from, wire->mutable_from());
  toWire(redistribution.to, wire->mutable_to());
  wire->set_bytes(redistribution.bytes);
  for (const char* collective : redistribution.collectives) wire->add_collectives(collective);
}

v1::Explanation explain(const OperatorRule& rule, std::size_t inputs, std::size_t outputs) {
  v1::Explanation wire;
  std::size_t rows = 0;
  for (const RuledElement& ruled : rule.elements()) rows = std::max(rows, ruled.rows.size());
  for (std::size_t r = 0; r < rows; ++r) addRow(rule, r, inputs, outputs, &wire);
  wire.set_choice(-1);
  const absl::StatusOr<Candidate> match = rule.match();
  if (!match.ok()) wire.set_refusal(std::string(match.status().message()));
  if (rule.elements().size() != 1) return wire;
  const RuleElement& element = rule.elements()[0].element;
  const std::size_t shown = std::clamp<std::size_t>(kMaxShown / std::max<std::size_t>(inputs, 1), 1, kMaxCandidates);
  for (const Candidate& candidate : rule.candidates(0)) {
    const bool chosen = match.ok() && candidate.redistributions.empty() && wire.choice() < 0;
    if (static_cast<std::size_t>(wire.candidates_size()) >= shown && !chosen) continue;
    if (chosen) wire.set_choice(wire.candidates_size());
    v1::PlacementCandidate* added = wire.add_candidates();
    for (std::size_t i = 0; i < element.inputs.size(); ++i) {
      toWire(OperatorRule::inputPlacements(candidate.rows[0], i), added->add_inputs()->mutable_placements());
    }
    for (std::size_t o = 0; o < element.outputs.size(); ++o) {
      toWire(OperatorRule::outputPlacements(candidate.rows[0], o), added->add_outputs()->mutable_placements());
    }
    for (const Redistribution& moved : candidate.redistributions) toWire(moved, added->add_redistributions());
    added->set_seconds(candidate.cost);
  }
  return wire;
}

v1::Explanation explainReplicated(absl::Span<const TensorLayout* const> inputs, std::size_t outputs,
                                  const PlacedMesh* mesh, const absl::Status& why) {
  v1::Explanation wire;
  v1::RuleRow* row = wire.add_rows();
  toWire(std::vector<Placement>(inputs.size()), row->mutable_inputs());
  toWire(std::vector<Placement>(outputs), row->mutable_outputs());
  const bool accepted = std::all_of(inputs.begin(), inputs.end(),
                                    [](const TensorLayout* layout) { return isAllReplicate(layout->placements); });
  wire.set_choice(accepted ? 0 : -1);
  if (!accepted) {
    wire.set_refusal(std::string(why.message()));
    return wire;
  }
  v1::PlacementCandidate* candidate = wire.add_candidates();
  const Placements everywhere = allReplicate(mesh->mesh.dims());
  for (std::size_t i = 0; i < inputs.size(); ++i) toWire(everywhere, candidate->add_inputs()->mutable_placements());
  for (std::size_t o = 0; o < outputs; ++o) toWire(everywhere, candidate->add_outputs()->mutable_placements());
  return wire;
}

}  // namespace dtorch
