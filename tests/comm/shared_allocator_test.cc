// What the allocator counts, against sums of what was asked of it.
#include "comm/store/shared_allocator.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tests/catch.h"

namespace dtorch {
namespace {

MemoryStatistics now() { return memoryStatistics().value(); }
at::Tensor bytes(std::int64_t count) { return at::empty({count}, at::kByte); }

constexpr std::int64_t kPage = 4096;
std::int64_t pages(std::int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

TEST_CASE("small and large tensors are counted, and given back") {
  installSharedAllocator();
  const MemoryStatistics before = now();
  for (const std::int64_t count : {std::int64_t{1}, std::int64_t{400}, std::int64_t{kSharedTensorBytes} - 1,
                                   std::int64_t{kSharedTensorBytes}, std::int64_t{20} << 20}) {
    CAPTURE(count);
    const at::Tensor tensor = bytes(count);
    const MemoryStatistics with = now();
    const std::int64_t grown = with.allocatedBytes - before.allocatedBytes;
    CHECK(grown >= count);
    CHECK(grown < count + 2 * kPage);
    CHECK(with.blocks == before.blocks + 1);
    CHECK(with.peakAllocatedBytes >= with.allocatedBytes);
    CHECK(with.reservedBytes >= with.allocatedBytes);
  }
  CHECK(now().allocatedBytes == before.allocatedBytes);
  CHECK(now().blocks == before.blocks);
  CHECK(now().blocksMade == before.blocksMade + 5);
  bytes(0);
  CHECK(now().blocks == before.blocks);
}

TEST_CASE("what is allocated and freed behind DataPtr is counted alike") {
  installSharedAllocator();
  c10::Allocator* allocator = c10::GetAllocator(c10::kCPU);
  const MemoryStatistics before = now();
  for (const std::size_t size : {std::size_t{100}, std::size_t{1} << 20}) {
    void* block = allocator->raw_allocate(size);
    CHECK(now().allocatedBytes >= before.allocatedBytes + static_cast<std::int64_t>(size));
    allocator->raw_deallocate(block);
    CHECK(now().allocatedBytes == before.allocatedBytes);
    CHECK(now().blocks == before.blocks);
  }
}

TEST_CASE("the peak is the most that was held at once, since it was reset") {
  installSharedAllocator();
  const auto seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  const std::int64_t before = now().allocatedBytes;
  resetPeakMemory();
  CHECK(now().peakAllocatedBytes == before);
  std::vector<at::Tensor> held;
  std::int64_t sum = 0;
  std::int64_t peak = 0;
  for (int i = 0; i < 300; ++i) {
    if (held.size() > 10 || (!held.empty() && random() % 2 == 0)) {
      const std::size_t victim = random() % held.size();
      sum -= pages(held[victim].numel());
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(victim));
    } else {
      held.push_back(bytes(static_cast<std::int64_t>(kSharedTensorBytes + random() % (4 << 20))));
      sum += pages(held.back().numel());
      peak = std::max(peak, sum);
    }
    CHECK(now().allocatedBytes == before + sum);
    CHECK(now().peakAllocatedBytes == before + peak);
  }
  held.clear();
  CHECK(now().peakAllocatedBytes == before + peak);
  resetPeakMemory();
  CHECK(now().peakAllocatedBytes == before);
}

TEST_CASE("memory that is kept for later tensors goes back when asked to") {
  installSharedAllocator();
  releaseCachedMemory();
  const std::int64_t before = now().reservedBytes;
  bytes(50 << 20);
  CHECK(now().reservedBytes == before + (50 << 20));
  releaseCachedMemory();
  CHECK(now().reservedBytes == before);
  CHECK(now().peakReservedBytes >= before + (50 << 20));
  resetPeakMemory();
  CHECK(now().peakReservedBytes == before);
}

}  // namespace dtorch
