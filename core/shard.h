#pragma once
#include <cstdint>
#include <vector>

#include "core/device_mesh.h"
#include "core/placement.h"

namespace dtorch {

/// A run of indices of one tensor dimension.
struct ShardRange {
  std::int64_t offset = 0;
  std::int64_t length = 0;
  friend bool operator==(const ShardRange&, const ShardRange&) = default;
};

/// The part of `size` indices that part `index` of `parts` holds, split as torch.chunk does: 5 over 4 is 2, 2, 1, 0.
ShardRange shardRange(std::int64_t size, std::int64_t parts, std::int64_t index);

/// The part of tensor dimension `dim` that lies at `coordinate`: every mesh dimension that shards `dim` splits what the
/// ones before it left, so that rows keep their order from left to right.
ShardRange localRange(std::int64_t size, int dim, const DeviceMesh& mesh, const Placements& placements,
                      const std::vector<std::int64_t>& coordinate);

/// Shape of the local tensor at `coordinate`; `shape` is the global one.
std::vector<std::int64_t> localShape(const std::vector<std::int64_t>& shape, const DeviceMesh& mesh,
                                     const Placements& placements, const std::vector<std::int64_t>& coordinate);

}  // namespace dtorch
