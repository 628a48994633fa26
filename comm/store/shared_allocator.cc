#include "comm/store/shared_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <malloc.h>

#include <atomic>
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
    if (bytes < kSharedTensorBytes) return before_->allocate(bytes);
    const std::size_t used = heap_.usedBytes() + elsewhere_.load(std::memory_order_relaxed);
    const std::size_t limit = limit_.load(std::memory_order_relaxed);
    TORCH_CHECK_WITH(OutOfMemoryError, used <= limit && bytes <= limit - used, "this worker's tensors hold ", used,
                     " bytes: ", bytes, " more would go beyond its limit of ", limit);
    void* block = heap_.allocate(bytes, currentOwner);
    if (block != nullptr) return {block, block, &release, c10::Device(c10::kCPU)};
    block = before_->raw_allocate(bytes);
    elsewhere_.fetch_add(::malloc_usable_size(block), std::memory_order_relaxed);
    return {block, block, &releaseElsewhere, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

  const SharedHeap& heap() const { return heap_; }
  void limit(std::size_t bytes) { limit_.store(bytes, std::memory_order_relaxed); }

 private:
  static void release(void* block);
  static void releaseElsewhere(void* block);

  c10::Allocator* before_;
  SharedHeap heap_{kCachedBytes};
  std::atomic<std::size_t> elsewhere_{0};  // bytes of large blocks for which the heap found no memory
  std::atomic<std::size_t> limit_{SIZE_MAX};
};

/// LibTorch's allocator of a process is one object that is never destroyed, and so is this: tensors outlive main().
std::atomic<SharedAllocator*> installed = nullptr;

void SharedAllocator::release(void* block) {
  SharedAllocator& self = *installed.load(std::memory_order_acquire);
  if (block != nullptr && !self.heap_.release(block)) self.before_->raw_deallocate(block);
}

void SharedAllocator::releaseElsewhere(void* block) {
  SharedAllocator& self = *installed.load(std::memory_order_acquire);
  self.elsewhere_.fetch_sub(::malloc_usable_size(block), std::memory_order_relaxed);
  self.before_->raw_deallocate(block);
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

TensorOwnerScope::TensorOwnerScope(SharedHeap::Owner owner) : before_(std::exchange(currentOwner, owner)) {}
TensorOwnerScope::~TensorOwnerScope() { currentOwner = before_; }

const SharedHeap* sharedHeap() {
  const SharedAllocator* allocator = installed.load(std::memory_order_acquire);
  return allocator == nullptr ? nullptr : &allocator->heap();
}

}  // namespace dtorch
