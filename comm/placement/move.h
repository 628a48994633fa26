#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/group/thread_group.h"
#include "core/device_mesh.h"
#include "core/dtype.h"
#include "core/placement.h"

namespace dtorch {

/// A tensor's way from the ranks of one mesh to those of another: any sizes, disjoint or not. A mesh of one rank makes
/// it a scatter or a gather.
struct Move {
  std::vector<std::int64_t> shape;
  DType dtype = DType::kUnspecified;
  DeviceMesh fromMesh;
  Placements from;
  DeviceMesh toMesh;
  Placements to;
};

/// Where a move runs: this rank, its groups by their ordered ranks, and on whose behalf.
struct MoveContext {
  Rank rank = 0;
  std::function<absl::StatusOr<ThreadGroup*>(const std::vector<Rank>&)> group;
  CallTag tag;
};

/// Called by every rank of either mesh. `local` is this rank's part on the source mesh; what ranks outside it pass is
/// not looked at. Returns this rank's part on the target mesh, contiguous and of its own; an undefined tensor outside
/// it.
///
/// Partial sources are reduced on the source mesh first. Then one all_to_all over the ranks of both meshes carries each
/// target rank the pieces that it needs, each from one of the ranks that have it: from itself if it has it, else from
/// replicas in turn.
/// Errors, on all ranks: those of convert(), INVALID_ARGUMENT also for a part of another dtype or shape than `move`
/// says.
absl::StatusOr<at::Tensor> moveBetween(const at::Tensor& local, const Move& move, const MoveContext& context);

}  // namespace dtorch
