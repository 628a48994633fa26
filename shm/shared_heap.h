#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "shm/segment.h"

namespace dtorch {

/// Where bytes lie, for another process.
struct SharedLocation {
  SegmentRef segment;
  std::uint64_t offset = 0;
};

/// Memory for large blocks in shared segments, so that other processes can map them where they are. Blocks of up to
/// kOwnRegion share segments; larger ones have their own, which is kept for the next block of about its size. Free
/// segments beyond `cachedBytes` go back to the system. What one owner left in a block, no other one sees: the block is
/// zeroed when it passes, and does not pass any more once its segment was lent.
///
/// Thread: safe.
class SharedHeap {
 public:
  static constexpr std::size_t kAlignment = 4096;
  static constexpr std::size_t kOwnRegion = 8 << 20;

  /// Whose data a block holds; any number, but the largest two.
  using Owner = std::uint64_t;

  explicit SharedHeap(std::size_t cachedBytes) : cachedBytes_(cachedBytes) {}

  /// nullptr: no memory for another segment. The content is zeros, or what this owner left there.
  void* allocate(std::size_t bytes, Owner owner = 0);
  /// False: not one of this heap's blocks.
  bool release(void* block);
  /// Where `bytes` bytes at `data` lie; nullopt when they are not in this heap.
  std::optional<SharedLocation> locate(const void* data, std::size_t bytes) const;

  /// The segment that holds this block of `owner` from its beginning, and nobody else's bytes, for who is to map it:
  /// from now on it serves this owner alone. nullptr: there is no such segment, as for blocks of up to kOwnRegion.
  std::shared_ptr<Segment> lend(const void* block, Owner owner);
  /// Frees what was lent of this owner's, blocks in use when they are released. It has no blocks made later.
  void forget(Owner owner);

  /// Gives segments without a block in use back to the system.
  void trim();

  /// Bytes of all segments, and of blocks in use.
  std::size_t heldBytes() const { return held_.load(std::memory_order_relaxed); }
  std::size_t usedBytes() const { return used_.load(std::memory_order_relaxed); }

 private:
  static constexpr Owner kNobody = UINT64_MAX;  // as it came from the system: zeros
  static constexpr Owner kSeveral = UINT64_MAX - 1;
  struct Run {
    std::size_t bytes = 0;
    Owner owner = kNobody;
  };
  struct Region {
    std::shared_ptr<Segment> segment;
    bool own = false;            // serves one block at a time
    std::optional<Owner> bound;  // lent: to this owner's memory; kNobody: freed with its last block
    /// Free runs and blocks in use, by offset.
    std::map<std::size_t, Run> free;
    std::map<std::size_t, Run> used;
  };
  using Regions = std::map<std::uintptr_t, Region>;  // by address

  /// A block, and who had it before.
  struct Taken {
    std::byte* data = nullptr;
    Owner before = kNobody;
  };
  static Owner merged(Owner a, Owner b);
  Taken allocateLocked(std::size_t bytes, Owner owner);
  Taken takeLocked(Region& region, std::size_t bytes, Owner owner);
  Regions::const_iterator regionOfLocked(const void* data) const;
  Region* addRegionLocked(std::size_t bytes, bool own);
  void trimLocked(std::size_t keptBytes);

  const std::size_t cachedBytes_;
  mutable std::mutex mutex_;
  Regions regions_;
  // Written with the mutex held.
  std::atomic<std::size_t> held_{0};
  std::atomic<std::size_t> used_{0};
};

}  // namespace dtorch
