#pragma once
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/device_mesh.h"
#include "core/dtype.h"
#include "core/placement.h"

namespace dtorch {

/// One step of a conversion: mesh dimension `meshDim` alone changes its placement.
struct ConversionStep {
  int meshDim = 0;
  Placement from;
  Placement to;
  /// The placements of all mesh dimensions before this step.
  Placements before;
  /// What a rank receives at most, in elements.
  double received = 0;

  /// Whether ranks exchange data in it.
  bool communicates() const { return !from.isReplicate() && !to.isPartial(); }
  /// "all_reduce", "all_gather", "reduce_scatter", "all_to_all"; null: it does not communicate.
  const char* collective() const;
};

/// The steps from placements `from` to `to` that move the fewest bytes, the same on every rank. Each step is right by
/// itself: where several mesh dimensions shard one tensor dimension, an outer one changes only while no inner one
/// shards it (rows would be permuted otherwise), and Partials of different operations are resolved innermost first.
/// Errors: INVALID_ARGUMENT for placements that do not fit mesh and shape; UNIMPLEMENTED naming the pair.
absl::StatusOr<std::vector<ConversionStep>> planConversion(const std::vector<std::int64_t>& shape,
                                                           const DeviceMesh& mesh, const Placements& from,
                                                           const Placements& to);

/// Whether a Partial(op) of this dtype can be reduced, and so read: as comm/group/reduce_kernels.h has it.
bool isReducible(DType dtype, ReduceOp op);

/// OK, or INVALID_ARGUMENT that names the first of `placements` that is Partial and not reducible.
absl::Status checkReducible(const Placements& placements, DType dtype);

}  // namespace dtorch
