#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "daemon/graph/tensor_layout.h"
#include "daemon/placement/metadata_service.h"
#include "daemon/placement/operator_template.h"
#include "daemon/placement/placed_operator.h"
#include "dtorch/v1/client.pb.h"
#include "dtorch/v1/worker.pb.h"

namespace dtorch {

/// What a tensor is moved for, by which logs name it. One that lies right already is copied; a gradient that nobody
/// else has, and that is contiguous, is shared.
enum class MoveFor : std::uint8_t { kRedistribute, kGradient, kOwnGradient, kGet };

/// An output that PyTorch has as a view of an input, and that is one of a copy here.
struct CopiedView {
  std::uint32_t output = 0;
  std::uint32_t input = 0;
};

/// What the workers do for one operator on inputs of known layouts; sent to them once, then named by its id.
struct PlannedOperator {
  PlanId id = 0;
  const PlacedMesh* mesh = nullptr;
  std::vector<const TensorLayout*> outputs;
  bool unknownOutputs = false;                  // the first rank reports them: `outputs` is empty
  std::vector<Redistribution> redistributions;  // of its inputs
  std::vector<Redistribution> innerMoves;       // collectives by which the operator itself works; inputs are slots
  std::vector<CopiedView> copiedViews;
  std::uint32_t slots = 0;  // of inputs and steps
  v1::Plan wire;
  bool published = false;  // set by whoever publishes it
};

/// Works out metadata, placements and steps; caches by template and input layouts.
///
/// Thread: the controller loop's.
/// Errors, remembered as plans are: INVALID_ARGUMENT: LibTorch refuses the inputs, or no signature matches their
/// placements (the message lists
///   those that would); UNIMPLEMENTED: no placement rule and not all Replicate, or no metadata rule.
class Planner {
 public:
  /// `ask` is to bring the answer to answered(), at once or later.
  Planner(LayoutTable* layouts, std::function<void(MetadataQuestion)> ask) : layouts_(layouts), ask_(std::move(ask)) {}

  /// `rules`: of the session that calls. `implicit`: inputs that are not placed as a rule wants are redistributed, as
  /// cheaply as can be; otherwise the call is refused. Null: what it returns has been asked; call again when an answer
  /// has come.
  absl::StatusOr<PlannedOperator*> plan(const OperatorTemplate& op, absl::Span<const TensorLayout* const> inputs,
                                        const RuleBook& rules, bool implicit);
  /// Of a call that plan() was asked for: for each output, the input whose memory it shares in one process, or -1;
  /// empty: not known.
  std::vector<int> viewsOf(const OperatorTemplate& op, absl::Span<const TensorLayout* const> inputs,
                           const RuleBook& rules, bool implicit) const;
  /// How such a call would be placed. nullopt: as plan().
  absl::StatusOr<std::optional<v1::Explanation>> explain(const OperatorTemplate& op,
                                                         absl::Span<const TensorLayout* const> inputs,
                                                         const RuleBook& rules);
  /// The answer to a question; one that nobody waits for any more is dropped.
  void answered(std::uint64_t number, MetadataAnswer answer);
  /// What a run with unknown outputs has given: what the same call gives the next time, unless it depends on values.
  void learn(const OperatorTemplate& op, absl::Span<const TensorLayout* const> inputs, const RuleBook& rules,
             bool implicit, std::vector<OutputMeta> outputs);
  /// A conversion of one tensor. `to` is normalised.
  absl::StatusOr<PlannedOperator*> planMove(const TensorLayout* input, const Placements& to, MoveFor purpose);
  /// `rules` have changed, or are about to go: what was planned by them is planned anew.
  void rulesChanged(const RuleBook& rules);
  std::size_t size() const { return plans_.size() + asked_.size() + conversions_.size(); }
  /// Of all plans, on the wire.
  std::size_t bytes() const { return bytes_; }
  /// Drops all plans; the ids of later ones start at the returned number.
  PlanId forget();

 private:
  using Key = absl::InlinedVector<const void*, 6>;
  struct RedistributeKey {
    const TensorLayout* input;
    Placements to;
    MoveFor purpose;
    friend bool operator==(const RedistributeKey&, const RedistributeKey&) = default;
    template <typename H>
    friend H AbslHashValue(H h, const RedistributeKey& k) {
      return H::combine(std::move(h), k.input, k.to, k.purpose);
    }
  };

  struct Asked {
    std::uint64_t number = 0;
    std::optional<MetadataAnswer> answer;
  };
  struct Planned {
    absl::Status error;
    std::unique_ptr<PlannedOperator> plan;  // null: `error` says why
    std::vector<int> views;                 // see viewsOf()
  };

  static Key keyOf(const OperatorTemplate& op, absl::Span<const TensorLayout* const> inputs, const RuleBook& rules,
                   bool implicit);
  absl::StatusOr<PlannedOperator*> planNew(const Key& key, const OperatorTemplate& op,
                                           absl::Span<const TensorLayout* const> inputs, const RuleBook& rules,
                                           bool implicit);
  /// nullopt: it has been asked.
  absl::StatusOr<std::optional<MetadataAnswer>> metadataOf(const Key& key, const OperatorTemplate& op,
                                                           absl::Span<const TensorLayout* const> inputs);
  static absl::StatusOr<std::vector<TensorMeta>> outputsOf(const OperatorTemplate& op,
                                                           absl::Span<const TensorLayout* const> inputs,
                                                           const std::vector<OutputMeta>& metadata);
  absl::StatusOr<std::unique_ptr<PlannedOperator>> make(const OperatorTemplate& op,
                                                        absl::Span<const TensorLayout* const> inputs,
                                                        MetadataAnswer metadata, const RuleBook& rules, bool implicit);
  absl::StatusOr<std::unique_ptr<PlannedOperator>> makeFactory(const OperatorTemplate& op,
                                                               const std::vector<TensorMeta>& outputs);
  absl::StatusOr<std::unique_ptr<PlannedOperator>> makeRuled(const OperatorTemplate& op,
                                                             absl::Span<const TensorLayout* const> inputs,
                                                             const std::vector<TensorMeta>& outputs,
                                                             std::vector<int> aliases, const OperatorRule& rule,
                                                             const Candidate& candidate);
  absl::StatusOr<std::unique_ptr<PlannedOperator>> makeUnknown(const OperatorTemplate& op,
                                                               absl::Span<const TensorLayout* const> inputs,
                                                               bool implicit);
  /// Steps of a program for these inputs of the call, which `inputSlots` has all of; the slots of its outputs.
  absl::StatusOr<std::vector<std::uint32_t>> addProgram(PlannedOperator* plan, const Program& program,
                                                        const Factors& factors,
                                                        const std::vector<const Signature*>& rows,
                                                        const std::vector<std::uint32_t>& inputs,
                                                        const std::vector<std::uint32_t>& inputSlots);
  /// The operator on lists, for the tensors at one place of them; the slots of its results.
  static std::vector<std::uint32_t> addElement(PlannedOperator* plan, const OperatorTemplate& op,
                                               absl::Span<const RuledElement> elements, std::size_t place,
                                               const std::vector<std::uint32_t>& slots);
  static void redistribute(PlannedOperator* plan, absl::Span<const TensorLayout* const> inputs,
                           std::vector<Redistribution> redistributions, std::vector<std::uint32_t>* slots);
  /// A tensor of its strides, too; its slot.
  static std::uint32_t addStrides(PlannedOperator* plan, std::uint32_t slot, const TensorMeta& meta);
  /// The arguments, after steps that make all inputs Replicate.
  static absl::StatusOr<std::vector<Value>> replicated(PlannedOperator* plan, const OperatorTemplate& op,
                                                       absl::Span<const TensorLayout* const> inputs);
  /// The slot of the first of its results.
  static std::uint32_t addKernel(PlannedOperator* plan, const OperatorTemplate& op, const std::vector<Value>& arguments,
                                 std::uint32_t results);
  /// The slot of its result.
  static std::uint32_t addConversion(PlannedOperator* plan, std::uint32_t slot, const std::vector<std::int64_t>& shape,
                                     const Placements& from, const Placements& to);
  /// Likewise, as a part of how the operator works.
  static std::uint32_t addMove(PlannedOperator* plan, std::uint32_t slot, const TensorMeta& meta,
                               const Placements& from, const Placements& to);
  void addOutputs(PlannedOperator* plan, const std::vector<TensorMeta>& outputs, const std::vector<Placements>& placed,
                  const std::vector<int>& aliases);
  std::unique_ptr<PlannedOperator> start(const PlacedMesh* mesh, std::size_t inputs, const std::string& name);
  void addOutput(PlannedOperator* plan, std::uint32_t slot, TensorLayout layout, int alias);

  LayoutTable* layouts_;
  std::function<void(MetadataQuestion)> ask_;
  PlanId nextId_ = 1;
  std::uint64_t nextQuestion_ = 1;
  std::size_t bytes_ = 0;
  absl::flat_hash_map<Key, Planned> plans_;
  absl::flat_hash_map<Key, Asked> asked_;
  absl::flat_hash_map<std::uint64_t, Key> questions_;  // without an answer
  absl::flat_hash_map<RedistributeKey, std::unique_ptr<PlannedOperator>> conversions_;
};

}  // namespace dtorch
