#include "shm/segment_pool.h"

#include <algorithm>
#include <vector>

#include "tests/catch.h"

namespace dtorch {

TEST_CASE("a pool gives an owner its own segments again, and frees the rest") {
  SegmentPool pool(100000);
  auto first = *pool.take(1, 40000);
  const std::byte* address = first->data();
  first->data()[7] = std::byte{7};
  pool.give(1, std::move(first));
  CHECK(pool.idleBytes() == 40000);
  const auto strangers = *pool.take(2, 40000);
  CHECK(strangers->data() != address);
  CHECK(strangers->data()[7] == std::byte{0});
  CHECK((*pool.take(1, 10000))->data() != address);  // it would be mostly waste
  CHECK((*pool.take(1, 40001))->data() != address);  // too small
  auto again = *pool.take(1, 30001);
  CHECK(again->data() == address);
  CHECK(pool.idleBytes() == 0);
  pool.give(1, std::move(again));
  for (int i = 0; i < 3; ++i) pool.give(2, *pool.take(3, 40000));
  CHECK(pool.idleBytes() == 80000);
  CHECK((*pool.take(1, 40000))->data()[7] == std::byte{0});  // the oldest was freed
  pool.forget(2);
  CHECK(pool.idleBytes() == 0);
}

TEST_CASE("a pool copies into memory that is fresh, or the owner's own") {
  SegmentPool pool(1 << 20);
  std::vector<std::byte> bytes(50000, std::byte{5});
  auto fresh = *pool.takeCopyOf(1, bytes.data(), bytes.size());
  const std::byte* address = fresh->data();
  CHECK(std::equal(bytes.begin(), bytes.end(), fresh->data()));
  pool.give(1, std::move(fresh));
  bytes.assign(49000, std::byte{6});
  auto again = *pool.takeCopyOf(1, bytes.data(), bytes.size());
  CHECK(again->data() == address);
  CHECK(std::equal(bytes.begin(), bytes.end(), again->data()));
  CHECK(again->data()[49000] == std::byte{5});
  pool.give(1, std::move(again));
  const auto others = *pool.takeCopyOf(2, bytes.data(), bytes.size());
  CHECK(others->data() != address);
  CHECK(others->size() == 49000);
}

}  // namespace dtorch
