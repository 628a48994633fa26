#pragma once
#include <cstddef>
#include <memory>
#include <optional>

#include "core/memory_statistics.h"
#include "shm/shared_heap.h"

namespace dtorch {

/// CPU tensors of at least this many bytes are placed in shared memory. Smaller ones travel with a call's check anyway.
inline constexpr std::size_t kSharedTensorBytes = 64 << 10;

/// Replaces LibTorch's CPU allocator in this process by one that places large tensors in a shared heap, so that other
/// processes reach them without a copy. When there is no memory for it, tensors come from the allocator before. To be
/// called before ThreadGroupManager::create(); repeated calls do nothing.
void installSharedAllocator();
/// From now on tensors of kSharedTensorBytes and more hold at most `bytes` together, temporaries of kernels included:
/// what would go beyond throws c10::OutOfMemoryError. Smaller ones are not counted.
void limitSharedAllocator(std::size_t bytes);

/// What this process's CPU tensors hold, small ones and temporaries of kernels included; nullopt: the allocator is not
/// installed, and nothing is counted.
std::optional<MemoryStatistics> memoryStatistics();
/// The peaks become what is held now.
void resetPeakMemory();
/// Gives memory that is kept for later tensors back to the system.
void releaseCachedMemory();

/// While it lives, tensors that this thread places in shared memory belong to `owner`, a session for instance: what is
/// in them no other owner's tensors show, however uninitialised. Scopes nest. Smaller tensors are not covered.
class TensorOwnerScope {
 public:
  explicit TensorOwnerScope(SharedHeap::Owner owner);
  TensorOwnerScope(const TensorOwnerScope&) = delete;
  TensorOwnerScope& operator=(const TensorOwnerScope&) = delete;
  ~TensorOwnerScope();

 private:
  const SharedHeap::Owner before_;
};

/// The heap of the installed allocator; nullptr when there is none.
const SharedHeap* sharedHeap();
/// SharedHeap::lend() for the memory of a tensor; nullptr: also when there is no heap.
std::shared_ptr<Segment> lendTensorMemory(const void* data, SharedHeap::Owner owner);
/// The owner has ended: SharedHeap::forget().
void forgetTensorOwner(SharedHeap::Owner owner);

}  // namespace dtorch
