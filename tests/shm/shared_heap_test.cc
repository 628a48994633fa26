#include "shm/shared_heap.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "shm/mapped_segments.h"
#include "tests/catch.h"

namespace dtorch {

TEST_CASE("another mapping finds a block where locate() says") {
  SharedHeap heap(0);
  auto* first = static_cast<char*>(heap.allocate(100000));
  auto* second = static_cast<char*>(heap.allocate(100000));
  REQUIRE(first != nullptr);
  REQUIRE(second != nullptr);
  CHECK(reinterpret_cast<std::uintptr_t>(second) % SharedHeap::kAlignment == 0);
  std::strcpy(second + 500, "here");
  const auto where = heap.locate(second + 500, 5);
  REQUIRE(where.has_value());
  MappedSegments mapped(4);
  auto segment = mapped.map(where->segment);
  REQUIRE(segment.ok());
  CHECK(std::strcmp(reinterpret_cast<const char*>((*segment)->data() + where->offset), "here") == 0);
  CHECK(*mapped.map(where->segment) == *segment);
  CHECK_FALSE(heap.locate(&heap, 1).has_value());
  CHECK_FALSE(heap.locate(second, std::size_t{1} << 40).has_value());
  CHECK(heap.release(first));
  CHECK(heap.release(second));
  CHECK_FALSE(heap.release(&heap));
  CHECK(heap.heldBytes() == 0);
}

TEST_CASE("freed segments are reused within the bound, and given back beyond it") {
  constexpr std::size_t kBlock = 20 << 20;
  SharedHeap heap(kBlock);
  void* one = heap.allocate(kBlock);
  void* two = heap.allocate(kBlock);
  CHECK(heap.heldBytes() == 2 * kBlock);
  CHECK(heap.usedBytes() == 2 * kBlock);
  heap.release(one);
  CHECK(heap.allocate(kBlock - 5000) == one);
  heap.release(one);
  heap.release(two);
  CHECK(heap.heldBytes() == kBlock);
  CHECK(heap.usedBytes() == 0);
  CHECK(heap.allocate(kBlock / 2) != one);  // not mostly waste
}

TEST_CASE("trimming gives back what no block is in, and only that") {
  SharedHeap heap(1 << 30);
  constexpr std::size_t kBlock = 20 << 20;
  void* kept = heap.allocate(kBlock);
  heap.release(heap.allocate(kBlock));
  heap.release(heap.allocate(100));
  CHECK(heap.heldBytes() > 2 * kBlock);
  heap.trim();
  CHECK(heap.heldBytes() == kBlock);
  std::memset(kept, 1, kBlock);
  CHECK(heap.release(kept));
}

TEST_CASE("blocks never overlap and neighbours merge") {
  SharedHeap heap(1 << 30);
  std::mt19937_64 random(7);
  std::map<char*, std::size_t> blocks;
  for (int i = 0; i < 3000; ++i) {
    if (blocks.size() > 60 || (!blocks.empty() && random() % 2 == 0)) {
      const auto victim = std::next(blocks.begin(), static_cast<std::ptrdiff_t>(random() % blocks.size()));
      REQUIRE(heap.release(victim->first));
      blocks.erase(victim);
      continue;
    }
    const std::size_t bytes = 1 + random() % (1 << 20);
    auto* block = static_cast<char*>(heap.allocate(bytes));
    REQUIRE(block != nullptr);
    const auto next = blocks.lower_bound(block);
    REQUIRE((next == blocks.end() || block + bytes <= next->first));
    REQUIRE((next == blocks.begin() || std::prev(next)->first + std::prev(next)->second <= block));
    blocks[block] = bytes;
  }
  for (const auto& [block, bytes] : blocks) heap.release(block);
  CHECK(heap.usedBytes() == 0);
  // What is free is in one piece again.
  CHECK(heap.allocate(SharedHeap::kOwnRegion) != nullptr);
  CHECK(heap.heldBytes() <= 96 << 20);
}

TEST_CASE("no owner sees what another one left") {
  SharedHeap heap(1 << 30);
  std::mt19937_64 random(11);
  struct Block {
    char* data;
    std::size_t bytes;
  };
  std::vector<Block> blocks;
  int kept = 0;
  for (int i = 0; i < 4000; ++i) {
    if (blocks.size() > 40 || (!blocks.empty() && random() % 2 == 0)) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      REQUIRE(heap.release(blocks.back().data));
      blocks.pop_back();
      continue;
    }
    const auto owner = static_cast<char>(1 + random() % 3);
    const std::size_t bytes = random() % 20 == 0 ? SharedHeap::kOwnRegion + 1 : 1 + random() % (1 << 18);
    auto* data = static_cast<char*>(heap.allocate(bytes, static_cast<SharedHeap::Owner>(owner)));
    REQUIRE(data != nullptr);
    const bool clean = std::all_of(data, data + bytes, [owner](char c) { return c == 0 || c == owner; });
    REQUIRE(clean);
    kept += data[0] == owner ? 1 : 0;
    std::memset(data, owner, bytes);
    blocks.push_back({data, bytes});
  }
  CHECK(kept > 0);  // an owner's own blocks are not zeroed for nothing
}

TEST_CASE("a lent segment serves its owner alone, and is freed with it") {
  constexpr std::size_t kBlock = 20 << 20;
  SharedHeap heap(1 << 30);
  void* block = heap.allocate(kBlock, 1);
  CHECK(heap.lend(block, 2) == nullptr);
  CHECK(heap.lend(static_cast<std::byte*>(block) + 4096, 1) == nullptr);
  CHECK(heap.lend(&heap, 1) == nullptr);
  void* small = heap.allocate(100000, 1);
  CHECK(heap.lend(small, 1) == nullptr);  // others' blocks are beside it
  const auto segment = heap.lend(block, 1);
  REQUIRE(segment != nullptr);
  CHECK(segment->data() == block);
  CHECK(segment->ref() == heap.locate(block, kBlock)->segment);
  heap.release(block);
  void* others = heap.allocate(kBlock, 2);
  CHECK(others != block);
  CHECK(heap.allocate(kBlock, 1) == block);
  heap.forget(1);
  CHECK(heap.locate(block, kBlock).has_value());  // in use
  heap.release(block);
  CHECK_FALSE(heap.locate(block, 1).has_value());
  CHECK(heap.heldBytes() == heap.locate(others, 1)->segment.bytes + heap.locate(small, 1)->segment.bytes);

  // What an earlier, larger block left behind the one that is to be lent is not shown either.
  heap.release(others);
  void* shorter = heap.allocate(kBlock - 8192, 3);
  REQUIRE(shorter == others);
  CHECK(heap.lend(shorter, 3) == nullptr);
  heap.release(shorter);
  void* again = heap.allocate(kBlock - 8192, 2);
  REQUIRE(again == others);
  CHECK(heap.lend(again, 2) == nullptr);  // they are not told apart any more
}

TEST_CASE("threads allocate and release at once") {
  SharedHeap heap(64 << 20);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&heap, t] {
      for (int i = 0; i < 300; ++i) {
        auto* block = static_cast<char*>(heap.allocate(70000));
        block[0] = static_cast<char>(t);
        block[69999] = static_cast<char>(t);
        if (!heap.locate(block, 70000) || block[0] != t) std::abort();
        heap.release(block);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(heap.usedBytes() == 0);
}

TEST_CASE("mappings beyond the limit are given up, those in use stay usable") {
  auto one = Segment::create("dtorch-test", 4096);
  auto two = Segment::create("dtorch-test", 4096);
  MappedSegments mapped(1);
  const auto held = *mapped.map(one->ref());
  REQUIRE(mapped.map(two->ref()).ok());
  CHECK(mapped.size() == 1);
  one->data()[3] = std::byte{3};
  CHECK(held->data()[3] == std::byte{3});

  MappedSegments few(4, 6000);
  REQUIRE(few.map(one->ref()).ok());
  REQUIRE(few.map(two->ref()).ok());
  CHECK(few.size() == 1);
}

TEST_CASE("a descriptor that comes again is the mapping of before, and is closed") {
  auto owner = Segment::create("dtorch-test", 4096);
  MappedSegments mapped(4);
  const auto duplicate = [&owner] { return ::fcntl(owner->ref().fd, F_DUPFD_CLOEXEC, 0); };
  const auto first = mapped.adopt(duplicate());
  REQUIRE(first.ok());
  const int again = duplicate();
  const auto second = mapped.adopt(again);
  REQUIRE(second.ok());
  CHECK(*first == *second);
  CHECK(::fcntl(again, F_GETFD) < 0);
  owner->data()[5] = std::byte{5};
  CHECK((*second)->data()[5] == std::byte{5});
  CHECK(absl::IsInvalidArgument(mapped.adopt(::open("/dev/null", O_RDONLY | O_CLOEXEC)).status()));
  CHECK(mapped.size() == 1);
}

}  // namespace dtorch
