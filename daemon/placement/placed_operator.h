#pragma once
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/node_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "daemon/graph/tensor_layout.h"
#include "daemon/placement/factors.h"
#include "daemon/placement/operator_template.h"
#include "daemon/placement/rule.h"
#include "daemon/placement/signature.h"

namespace dtorch {

/// The tensors of one call that its rule looks at together: all of them or, for an operator on lists (foreach), those
/// of one place of the lists.
struct RuleElement {
  RuleCall call;
  std::vector<std::uint32_t> inputs;   // of the operator's call, for each of RuleCall::inputs
  std::vector<std::uint32_t> outputs;  // of the operator's call, for each of RuleCall::outputs; kNoOutput: none
  /// Inputs of the operator's call that must lie as an output of `call` does, being written: (output, input).
  std::vector<std::pair<std::uint32_t, std::uint32_t>> written;
  std::vector<std::size_t> shared;  // inputs that all elements have
  static constexpr std::uint32_t kNoOutput = ~0u;
};

/// An element with what its rule says of it.
struct RuledElement {
  RuleElement element;
  Factors factors;
  std::vector<Signature> rows;  // those that leave written tensors where they are
};

/// What moves to where before the operator can run.
struct Redistribution {
  std::uint32_t input = 0;
  Placements from;
  Placements to;
  double bytes = 0;                      // that a rank receives
  std::vector<const char*> collectives;  // names, in their order

  /// Of a tensor of this metadata. As planConversion() fails.
  static absl::StatusOr<Redistribution> plan(std::uint32_t input, const TensorMeta& meta, const DeviceMesh& mesh,
                                             const Placements& from, const Placements& to);
  /// Likewise; one that cannot be moved so moves no bytes, and the workers say why.
  static Redistribution of(std::uint32_t input, const TensorMeta& meta, const DeviceMesh& mesh, const Placements& from,
                           const Placements& to);
};

/// A way to place the tensors of a call.
struct Candidate {
  /// For each element: its row on each mesh dimension.
  std::vector<std::vector<const Signature*>> rows;
  std::vector<Redistribution> redistributions;
  double cost = 0;  // seconds, estimated: see operator_cost.h
};

/// The rule of one operator, applied to inputs of known layouts.
class OperatorRule {
 public:
  /// `outputs`: global metadata. UNIMPLEMENTED: no rule, or one that does not cover these arguments.
  static absl::StatusOr<OperatorRule> create(const OperatorTemplate& op, absl::Span<const TensorLayout* const> inputs,
                                             const std::vector<TensorMeta>& outputs, const PlacedMesh* mesh,
                                             const RuleBook& book);

  const std::vector<RuledElement>& elements() const { return elements_; }
  /// The candidate that takes the inputs as they are. INVALID_ARGUMENT: none does; the message lists what is accepted.
  absl::StatusOr<Candidate> match() const;
  /// All candidates of element `e`, with what it takes to get there; those that cannot be are left out.
  std::vector<Candidate> candidates(std::size_t e) const;
  /// The cheapest candidate. UNIMPLEMENTED: there is none.
  absl::StatusOr<Candidate> cheapest() const;
  /// The placements of a tensor of `element` by the rows of its mesh dimensions.
  static Placements inputPlacements(const std::vector<const Signature*>& rows, std::size_t input);
  static Placements outputPlacements(const std::vector<const Signature*>& rows, std::size_t output);
  /// The program to run in place of the kernel; null: the kernel is right.
  absl::StatusOr<std::unique_ptr<Program>> program(const Candidate& candidate, std::size_t element) const;

 private:
  /// OK, or why the tensors of `element` cannot be split as `rows` say on this mesh.
  absl::Status check(const RuledElement& element, const std::vector<const Signature*>& rows) const;

  /// Whether what is best for the one is best for the other: rows, moves and costs are the same.
  bool isLike(const RuleElement& element, const RuleElement& other) const;
  /// Whether moving an input to where `rows` have it spreads a value into summands only to add them up again: nothing
  /// else in those rows makes it worth that.
  bool spreadsInVain(const RuleElement& element, const std::vector<const Signature*>& rows, std::size_t input) const;
  /// What it takes to bring a tensor of this layout to placements `to`. Most tensors of a long list are alike.
  const absl::StatusOr<Redistribution>& moveOf(const TensorLayout& layout, const Placements& to) const;

  absl::Span<const TensorLayout* const> inputs_;
  const PlacedMesh* mesh_ = nullptr;
  std::vector<bool> written_;  // which inputs are, and are never moved
  std::vector<RuledElement> elements_;
  mutable absl::node_hash_map<std::pair<const TensorLayout*, Placements>, absl::StatusOr<Redistribution>> moves_;
};

}  // namespace dtorch
