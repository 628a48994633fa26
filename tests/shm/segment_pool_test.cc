#include "shm/segment_pool.h"

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

}  // namespace dtorch
