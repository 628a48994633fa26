#include "comm/store/shared_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

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
    void* block = heap_.allocate(bytes, currentOwner);
    if (block == nullptr) return before_->allocate(bytes);
    return {block, block, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

  const SharedHeap& heap() const { return heap_; }

 private:
  static void release(void* block);

  c10::Allocator* before_;
  SharedHeap heap_{kCachedBytes};
};

/// LibTorch's allocator of a process is one object that is never destroyed, and so is this: tensors outlive main().
std::atomic<SharedAllocator*> installed = nullptr;

void SharedAllocator::release(void* block) {
  SharedAllocator& self = *installed.load(std::memory_order_acquire);
  if (block != nullptr && !self.heap_.release(block)) self.before_->raw_deallocate(block);
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

TensorOwnerScope::TensorOwnerScope(SharedHeap::Owner owner) : before_(std::exchange(currentOwner, owner)) {}
TensorOwnerScope::~TensorOwnerScope() { currentOwner = before_; }

const SharedHeap* sharedHeap() {
  const SharedAllocator* allocator = installed.load(std::memory_order_acquire);
  return allocator == nullptr ? nullptr : &allocator->heap();
}

}  // namespace dtorch
