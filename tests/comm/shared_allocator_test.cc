// What the allocator counts, against sums of what was asked of it.
#include "comm/store/shared_allocator.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/catch.h"

namespace dtorch {
namespace {

MemoryStatistics now() { return memoryStatistics().value(); }
at::Tensor bytes(std::int64_t count) { return at::empty({count}, at::kByte); }

constexpr std::int64_t kPage = 4096;
std::int64_t pages(std::int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

bool isShared(const at::Tensor& tensor) {
  return sharedHeap()->locate(tensor.const_data_ptr(), tensor.nbytes()).has_value();
}

/// While it lives, this process cannot open another descriptor, and so make no segment.
class NoDescriptors {
 public:
  NoDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const int lowest = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    ::close(lowest);
    rlimit none = before_;
    none.rlim_cur = static_cast<rlim_t>(lowest);
    ::setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
};

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

TEST_CASE("ordinary results are in shared memory, whichever way they come about") {
  installSharedAllocator();
  const at::Tensor x = at::rand({300, 300});
  at::Tensor grown = at::empty({0});
  grown.resize_({40000});
  at::Tensor out = at::empty({0});
  at::mm_out(out, x, x);
  const std::vector<std::pair<std::string, at::Tensor>> results = {
      {"add", x + 1},
      {"mm", at::mm(x, x)},
      {"cat", at::cat({x, x})},
      {"clone", x.t().clone()},
      {"contiguous", x.t().contiguous()},
      {"to", x.to(at::kDouble)},
      {"empty_strided", at::empty_strided({300, 300}, {1, 300})},
      {"sort", std::get<0>(at::sort(x))},
      {"conv2d", at::conv2d(at::rand({1, 3, 80, 80}), at::rand({8, 3, 3, 3}))},
      {"linear of half precision", at::linear(x.to(at::kBFloat16), x.to(at::kBFloat16))},
      {"resize_", grown},
      {"an out form", out},
  };
  for (const auto& [what, result] : results) {
    INFO(what);
    CHECK(isShared(result));
  }
  std::vector<float> own(40000);
  CHECK_FALSE(isShared(at::from_blob(own.data(), {40000})));
}

TEST_CASE("where no segment can be made, tensors come from ordinary memory, counted and freed alike") {
  installSharedAllocator();
  releaseCachedMemory();
  const MemoryStatistics before = now();
  {
    at::Tensor tensor;
    {
      const NoDescriptors none;
      tensor = bytes(20 << 20);
    }
    CHECK_FALSE(isShared(tensor));
    tensor.fill_(3);
    CHECK(tensor.sum().item<std::int64_t>() == std::int64_t{60} << 20);
    CHECK(now().allocatedBytes >= before.allocatedBytes + (20 << 20));
    CHECK(isShared(bytes(20 << 20)));  // as soon as there is
  }
  CHECK(now().allocatedBytes == before.allocatedBytes);
}

TEST_CASE("large tensors together stay within the limit, wherever they are") {
  installSharedAllocator();
  releaseCachedMemory();
  limitSharedAllocator((30 << 20) + sharedHeap()->usedBytes());
  {
    const at::Tensor held = bytes(20 << 20);
    CHECK_THROWS_AS(bytes(20 << 20), c10::OutOfMemoryError);
    const at::Tensor more = bytes(9 << 20);
    CHECK_THROWS_WITH(bytes(9 << 20), Catch::Contains("limit"));
    CHECK(bytes(100).defined());  // small ones are not counted
  }
  {
    at::Tensor elsewhere;
    {
      const NoDescriptors none;
      elsewhere = bytes(20 << 20);
    }
    CHECK_THROWS_AS(bytes(20 << 20), c10::OutOfMemoryError);
  }
  CHECK(bytes(20 << 20).defined());  // what is freed can be had again
  limitSharedAllocator(SIZE_MAX);
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
