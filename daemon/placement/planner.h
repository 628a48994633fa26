#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "daemon/graph/tensor_layout.h"
#include "daemon/placement/metadata_process.h"
#include "daemon/placement/operator_template.h"
#include "dtorch/v1/worker.pb.h"

namespace dtorch {

/// What the workers do for one operator on inputs of known layouts; sent to them once, then named by its id.
struct PlannedOperator {
  PlanId id = 0;
  const PlacedMesh* mesh = nullptr;
  std::vector<const TensorLayout*> outputs;
  v1::Plan wire;
  bool published = false;  // set by whoever publishes it
};

/// Works out metadata, placements and steps; caches by template and input layouts.
///
/// Thread: the controller loop's.
/// Errors: INVALID_ARGUMENT: LibTorch refuses the inputs, or no signature matches their placements (the message lists
///   those that would); UNIMPLEMENTED: no placement rule and not all Replicate, or no metadata rule.
class Planner {
 public:
  Planner(LayoutTable* layouts, MetadataSource metadata) : layouts_(layouts), metadata_(std::move(metadata)) {}

  absl::StatusOr<PlannedOperator*> plan(const OperatorTemplate& op, absl::Span<const TensorLayout* const> inputs);
  /// A conversion of one tensor. `to` is normalised.
  absl::StatusOr<PlannedOperator*> planRedistribute(const TensorLayout* input, const Placements& to);
  std::size_t size() const { return plans_.size() + conversions_.size(); }
  /// Drops all plans; the ids of later ones start at the returned number.
  PlanId forget();

 private:
  using Key = absl::InlinedVector<const void*, 6>;
  struct RedistributeKey {
    const TensorLayout* input;
    Placements to;
    friend bool operator==(const RedistributeKey&, const RedistributeKey&) = default;
    template <typename H>
    friend H AbslHashValue(H h, const RedistributeKey& k) {
      return H::combine(std::move(h), k.input, k.to);
    }
  };

  absl::StatusOr<std::unique_ptr<PlannedOperator>> make(const OperatorTemplate& op,
                                                        absl::Span<const TensorLayout* const> inputs);
  std::unique_ptr<PlannedOperator> start(const PlacedMesh* mesh, std::size_t inputs, const std::string& name);
  void addOutput(PlannedOperator* plan, std::uint32_t slot, TensorLayout layout, int alias);

  LayoutTable* layouts_;
  MetadataSource metadata_;
  PlanId nextId_ = 1;
  absl::flat_hash_map<Key, std::unique_ptr<PlannedOperator>> plans_;
  absl::flat_hash_map<RedistributeKey, std::unique_ptr<PlannedOperator>> conversions_;
};

}  // namespace dtorch
