#include "core/shard.h"

#include <numeric>
#include <random>

#include "tests/catch.h"

namespace dtorch {
namespace {

using Shape = std::vector<std::int64_t>;

DeviceMesh meshOf(const Shape& shape) {
  std::vector<Rank> ranks(
      static_cast<std::size_t>(std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>())));
  std::iota(ranks.begin(), ranks.end(), 0);
  return *DeviceMesh::create(DeviceType::kCpu, shape, ranks);
}

Shape lengths(std::int64_t size, std::int64_t parts) {
  Shape result;
  for (std::int64_t i = 0; i < parts; ++i) result.push_back(shardRange(size, parts, i).length);
  return result;
}

TEST_CASE("A dimension is split as torch.chunk does") {
  // len(c) of torch.arange(size).chunk(parts), with the missing chunks as 0.
  CHECK(lengths(5, 4) == Shape{2, 2, 1, 0});
  CHECK(lengths(6, 4) == Shape{2, 2, 2, 0});
  CHECK(lengths(4, 4) == Shape{1, 1, 1, 1});
  CHECK(lengths(3, 4) == Shape{1, 1, 1, 0});
  CHECK(lengths(0, 3) == Shape{0, 0, 0});
  CHECK(lengths(10, 3) == Shape{4, 4, 2});
  CHECK(lengths(1, 1) == Shape{1});
  CHECK(lengths(1438, 3) == Shape{480, 480, 478});
}

TEST_CASE("Shards cover every index once, in order") {
  for (std::int64_t size = 0; size < 40; ++size) {
    for (std::int64_t parts = 1; parts < 12; ++parts) {
      std::int64_t next = 0;
      for (std::int64_t i = 0; i < parts; ++i) {
        const ShardRange range = shardRange(size, parts, i);
        CHECK(range.length >= 0);
        CHECK(range.offset == std::min(next, size));
        next = range.offset + range.length;
      }
      CHECK(next == size);
    }
  }
}

TEST_CASE("A dimension of many elements does not overflow") {
  const std::int64_t size = (1LL << 62) + 1;
  CHECK(shardRange(size, 2, 0) == ShardRange{0, (1LL << 61) + 1});
  CHECK(shardRange(size, 2, 1) == ShardRange{(1LL << 61) + 1, 1LL << 61});
}

TEST_CASE("A dimension that two mesh dimensions shard is split left to right") {
  const DeviceMesh mesh = meshOf({2, 3});
  const Placements both{Placement::shard(0), Placement::shard(0)};
  CHECK(localRange(10, 0, mesh, both, {0, 0}) == ShardRange{0, 2});
  CHECK(localRange(10, 0, mesh, both, {0, 2}) == ShardRange{4, 1});
  CHECK(localRange(10, 0, mesh, both, {1, 0}) == ShardRange{5, 2});
  CHECK(localRange(10, 1, mesh, both, {1, 2}) == ShardRange{0, 10});
  CHECK(localShape({10, 4}, mesh, {Placement::shard(1), Placement::partial()}, {1, 2}) == Shape{10, 2});
  CHECK(localShape({}, mesh, {Placement::replicate(), Placement::partial()}, {0, 0}).empty());
}

TEST_CASE("The local parts of a tensor tile it") {
  const auto seed = GENERATE(range(0u, 100u));
  CAPTURE(seed);
  std::mt19937 random(seed);
  const Shape shape{static_cast<std::int64_t>(random() % 7), static_cast<std::int64_t>(random() % 7)};
  Shape extents(1 + random() % 3);
  for (auto& extent : extents) extent = 1 + random() % 3;
  const DeviceMesh mesh = meshOf(extents);
  Placements placements;
  for (std::size_t m = 0; m < extents.size(); ++m) {
    const auto kind = random() % 3;
    placements.push_back(kind == 2 ? Placement::replicate() : Placement::shard(static_cast<int>(kind)));
  }
  std::vector<int> owners(static_cast<std::size_t>(shape[0] * shape[1]));
  for (const Rank rank : mesh.ranks()) {
    const auto coordinate = *mesh.coordinate(rank);
    const ShardRange rows = localRange(shape[0], 0, mesh, placements, coordinate);
    const ShardRange columns = localRange(shape[1], 1, mesh, placements, coordinate);
    CHECK(localShape(shape, mesh, placements, coordinate) == Shape{rows.length, columns.length});
    for (std::int64_t r = rows.offset; r < rows.offset + rows.length; ++r) {
      for (std::int64_t c = columns.offset; c < columns.offset + columns.length; ++c)
        ++owners[static_cast<std::size_t>(r * shape[1] + c)];
    }
  }
  int copies = 1;  // ranks that hold the same part
  for (std::size_t m = 0; m < extents.size(); ++m)
    copies *= placements[m].isReplicate() ? static_cast<int>(extents[m]) : 1;
  for (const int count : owners) CHECK(count == copies);
}

}  // namespace
}  // namespace dtorch
