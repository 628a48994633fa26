#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/group/thread_group.h"
#include "core/device_mesh.h"
#include "core/placement.h"

namespace dtorch {

/// Where a conversion runs.
struct ConvertContext {
  const DeviceMesh& mesh;
  /// This rank's position in `mesh`.
  std::vector<std::int64_t> coordinate;
  /// The group of ordered ranks that hold this one.
  std::function<absl::StatusOr<ThreadGroup*>(const std::vector<Rank>&)> group;
  CallTag tag;
};

/// This rank's part of a tensor of global shape `shape`, moved from placements `from` to `to`. The result is a tensor
/// of its own (never a view of `local`, unless from == to), contiguous. The steps are the same on every rank, chosen by
/// bytes moved.
/// Errors: UNIMPLEMENTED naming the pair for a conversion that is not defined, on all ranks; those of ThreadGroup.
absl::StatusOr<at::Tensor> convert(const at::Tensor& local, const std::vector<std::int64_t>& shape,
                                   const Placements& from, const Placements& to, const ConvertContext& context);

/// Takes part in the same conversion as a rank whose input could not be computed, so that no peer waits for it: every
/// rank that exchanges data with this one gets `why`.
absl::Status failConversion(const absl::Status& why, const std::vector<std::int64_t>& shape, const Placements& from,
                            const Placements& to, const ConvertContext& context);

}  // namespace dtorch
