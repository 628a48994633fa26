#include "comm/store/shared_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <malloc.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

namespace dtorch {
namespace {

constexpr std::size_t kCachedBytes = 256 << 20;
constexpr std::uint8_t kPriority = 100;  // above LibTorch's own

thread_local SharedHeap::Owner currentOwner = 0;

class SharedAllocator final : public c10::Allocator {
 public:
  explicit SharedAllocator(c10::Allocator* before) : before_(before) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes < kSharedTensorBytes) return outside(bytes, &releaseSmall);
    const std::size_t used = heap_.usedBytes() + elsewhere_.load(std::memory_order_relaxed);
    const std::size_t limit = limit_.load(std::memory_order_relaxed);
    TORCH_CHECK_WITH(OutOfMemoryError, used <= limit && bytes <= limit - used, "this worker's tensors hold ", used,
                     " bytes: ", bytes, " more would go beyond its limit, workers.memory = ", limit);
    void* block = heap_.allocate(bytes, currentOwner);
    if (block != nullptr) {
      countOne();
      raise(peakReserved_, reserved());
      return {block, block, &release, c10::Device(c10::kCPU)};
    }
    c10::DataPtr data = outside(bytes, &releaseElsewhere);
    elsewhere_.fetch_add(::malloc_usable_size(data.get()), std::memory_order_relaxed);
    return data;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

  SharedHeap& heap() { return heap_; }
  void limit(std::size_t bytes) { limit_.store(bytes, std::memory_order_relaxed); }

  MemoryStatistics statistics() const {
    const auto number = [](std::size_t count) { return static_cast<std::int64_t>(count); };
    const std::size_t made = made_.load(std::memory_order_relaxed);
    return {number(allocated()),
            number(peakAllocated_.load(std::memory_order_relaxed)),
            number(reserved()),
            number(peakReserved_.load(std::memory_order_relaxed)),
            number(made - freed_.load(std::memory_order_relaxed)),
            number(made)};
  }
  void resetPeak() {
    peakAllocated_.store(allocated(), std::memory_order_relaxed);
    peakReserved_.store(reserved(), std::memory_order_relaxed);
  }

 private:
  static SharedAllocator& self();
  static void release(void* block);
  static void releaseSmall(void* block);
  static void releaseElsewhere(void* block);

  c10::DataPtr outside(std::size_t bytes, c10::DeleterFnPtr deleter) {
    void* block = before_->raw_allocate(bytes);
    if (block == nullptr) return {nullptr, c10::Device(c10::kCPU)};  // of no bytes
    outside_.fetch_add(::malloc_usable_size(block), std::memory_order_relaxed);
    countOne();
    return {block, block, deleter, c10::Device(c10::kCPU)};
  }
  void countOne() {
    made_.fetch_add(1, std::memory_order_relaxed);
    raise(peakAllocated_, allocated());
  }
  static void raise(std::atomic<std::size_t>& peak, std::size_t now) {
    std::size_t before = peak.load(std::memory_order_relaxed);
    while (before < now && !peak.compare_exchange_weak(before, now, std::memory_order_relaxed)) {
    }
  }
  std::size_t allocated() const { return outside_.load(std::memory_order_relaxed) + heap_.usedBytes(); }
  std::size_t reserved() const { return outside_.load(std::memory_order_relaxed) + heap_.heldBytes(); }

  c10::Allocator* before_;
  SharedHeap heap_{kCachedBytes};
  std::atomic<std::size_t> outside_{0};    // bytes of blocks that are not the heap's
  std::atomic<std::size_t> elsewhere_{0};  // bytes of large blocks for which the heap found no memory
  std::atomic<std::size_t> limit_{SIZE_MAX};
  std::atomic<std::size_t> peakAllocated_{0};
  std::atomic<std::size_t> peakReserved_{0};
  std::atomic<std::size_t> made_{0};  // blocks
  std::atomic<std::size_t> freed_{0};
};

/// LibTorch's allocator of a process is one object that is never destroyed, and so is this: tensors outlive main().
std::atomic<SharedAllocator*> installed = nullptr;

SharedAllocator& SharedAllocator::self() { return *installed.load(std::memory_order_acquire); }

void SharedAllocator::release(void* block) {
  if (block == nullptr) return;
  // LibTorch's raw_deallocate() has one deleter for blocks of all sizes.
  if (!self().heap_.release(block)) return releaseSmall(block);
  self().freed_.fetch_add(1, std::memory_order_relaxed);
}

void SharedAllocator::releaseSmall(void* block) {
  SharedAllocator& allocator = self();
  allocator.outside_.fetch_sub(::malloc_usable_size(block), std::memory_order_relaxed);
  allocator.freed_.fetch_add(1, std::memory_order_relaxed);
  allocator.before_->raw_deallocate(block);
}

void SharedAllocator::releaseElsewhere(void* block) {
  self().elsewhere_.fetch_sub(::malloc_usable_size(block), std::memory_order_relaxed);
  releaseSmall(block);
}

}  // namespace

void installSharedAllocator() {
  static std::once_flag once;
  std::call_once(once, [] {
    auto* allocator = new SharedAllocator(c10::GetCPUAllocator());
    installed.store(allocator, std::memory_order_release);
    c10::SetCPUAllocator(allocator, kPriority);
  });
}

void limitSharedAllocator(std::size_t bytes) {
  if (SharedAllocator* allocator = installed.load(std::memory_order_acquire)) allocator->limit(bytes);
}

std::optional<MemoryStatistics> memoryStatistics() {
  const SharedAllocator* allocator = installed.load(std::memory_order_acquire);
  return allocator == nullptr ? std::nullopt : std::optional(allocator->statistics());
}

void resetPeakMemory() {
  if (SharedAllocator* allocator = installed.load(std::memory_order_acquire)) allocator->resetPeak();
}

void releaseCachedMemory() {
  if (SharedAllocator* allocator = installed.load(std::memory_order_acquire)) allocator->heap().trim();
}

TensorOwnerScope::TensorOwnerScope(SharedHeap::Owner owner) : before_(std::exchange(currentOwner, owner)) {}
TensorOwnerScope::~TensorOwnerScope() { currentOwner = before_; }

std::shared_ptr<Segment> lendTensorMemory(const void* data, SharedHeap::Owner owner) {
  SharedAllocator* allocator = installed.load(std::memory_order_acquire);
  return allocator == nullptr ? nullptr : allocator->heap().lend(data, owner);
}

void forgetTensorOwner(SharedHeap::Owner owner) {
  if (SharedAllocator* allocator = installed.load(std::memory_order_acquire)) allocator->heap().forget(owner);
}

const SharedHeap* sharedHeap() {
  SharedAllocator* allocator = installed.load(std::memory_order_acquire);
  return allocator == nullptr ? nullptr : &allocator->heap();
}

}  // namespace dtorch
