#pragma once
#include <cstddef>

#include "shm/shared_heap.h"

namespace dtorch {

/// CPU tensors of at least this many bytes are placed in shared memory. Smaller ones travel with a call's check anyway.
inline constexpr std::size_t kSharedTensorBytes = 64 << 10;

/// Replaces LibTorch's CPU allocator in this process by one that places large tensors in a shared heap, so that other
/// processes reach them without a copy. When there is no memory for it, tensors come from the allocator before. To be
/// called before ThreadGroupManager::create(); repeated calls do nothing.
void installSharedAllocator();

/// The heap of the installed allocator; nullptr when there is none.
const SharedHeap* sharedHeap();

}  // namespace dtorch
