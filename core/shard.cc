#include "core/shard.h"

#include <algorithm>
#include <cstddef>

namespace dtorch {

ShardRange shardRange(std::int64_t size, std::int64_t parts, std::int64_t index) {
  const std::int64_t chunk = size / parts + (size % parts != 0 ? 1 : 0);
  const std::int64_t begin = std::min(size, chunk * index);
  return {begin, std::min(size, begin + chunk) - begin};
}

ShardRange localRange(std::int64_t size, int dim, const DeviceMesh& mesh, const Placements& placements,
                      const std::vector<std::int64_t>& coordinate) {
  ShardRange range{0, size};
  for (std::size_t m = 0; m < placements.size(); ++m) {
    if (!placements[m].isShard(dim)) continue;
    const ShardRange part = shardRange(range.length, mesh.shape()[m], coordinate[m]);
    range = {range.offset + part.offset, part.length};
  }
  return range;
}

std::vector<std::int64_t> localShape(const std::vector<std::int64_t>& shape, const DeviceMesh& mesh,
                                     const Placements& placements, const std::vector<std::int64_t>& coordinate) {
  std::vector<std::int64_t> local = shape;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    local[d] = localRange(shape[d], static_cast<int>(d), mesh, placements, coordinate).length;
  }
  return local;
}

}  // namespace dtorch
