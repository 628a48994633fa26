#include "shm/shared_heap.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace dtorch {
namespace {
constexpr std::size_t kSharedRegion = 32 << 20;

std::size_t roundUp(std::size_t bytes) {
  return (std::max<std::size_t>(bytes, 1) + SharedHeap::kAlignment - 1) / SharedHeap::kAlignment *
         SharedHeap::kAlignment;
}
}  // namespace

void* SharedHeap::allocate(std::size_t bytes) {
  if (bytes > SIZE_MAX / 2) return nullptr;
  const std::size_t size = roundUp(bytes);
  const std::lock_guard lock(mutex_);
  const bool own = size > kOwnRegion;
  Region* best = nullptr;
  std::size_t least = SIZE_MAX;
  for (auto& [address, region] : regions_) {
    // A region of its own serves blocks of at least three quarters of its size, so that it is never mostly waste.
    if (region.own != own || (own && size < region.segment.size() / 4 * 3)) continue;
    for (const auto& [offset, length] : region.free) {
      if (length >= size && length < least) {
        best = &region;
        least = length;
      }
    }
  }
  if (best == nullptr) best = addRegionLocked(own ? size : kSharedRegion, own);
  return best == nullptr ? nullptr : takeLocked(*best, size);
}

SharedHeap::Region* SharedHeap::addRegionLocked(std::size_t bytes, bool own) {
  auto segment = Segment::create("dtorch-heap", bytes);
  if (!segment.ok()) return nullptr;
  const auto address = reinterpret_cast<std::uintptr_t>(segment->data());
  Region& region = regions_[address];
  region.segment = *std::move(segment);
  region.own = own;
  region.free[0] = region.segment.size();
  held_ += region.segment.size();
  return &region;
}

void* SharedHeap::takeLocked(Region& region, std::size_t bytes) {
  auto best = region.free.end();
  for (auto it = region.free.begin(); it != region.free.end(); ++it) {
    if (it->second >= bytes && (best == region.free.end() || it->second < best->second)) best = it;
  }
  const auto [offset, length] = *best;
  region.free.erase(best);
  if (length > bytes) region.free[offset + bytes] = length - bytes;
  region.used[offset] = bytes;
  used_ += bytes;
  return region.segment.data() + offset;
}

SharedHeap::Regions::const_iterator SharedHeap::regionOfLocked(const void* data) const {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  auto it = regions_.upper_bound(address);
  if (it == regions_.begin()) return regions_.end();
  --it;
  return address < it->first + it->second.segment.size() ? it : regions_.end();
}

bool SharedHeap::release(void* block) {
  const std::lock_guard lock(mutex_);
  const auto it = regionOfLocked(block);
  if (it == regions_.end()) return false;
  Region& region = regions_.at(it->first);
  const auto used = region.used.find(reinterpret_cast<std::uintptr_t>(block) - it->first);
  if (used == region.used.end()) return false;
  used_ -= used->second;
  auto free = region.free.insert({used->first, used->second}).first;
  region.used.erase(used);
  if (const auto next = std::next(free); next != region.free.end() && free->first + free->second == next->first) {
    free->second += next->second;
    region.free.erase(next);
  }
  if (free != region.free.begin()) {
    const auto previous = std::prev(free);
    if (previous->first + previous->second == free->first) {
      previous->second += free->second;
      region.free.erase(free);
    }
  }
  if (region.used.empty()) trimLocked();
  return true;
}

void SharedHeap::trimLocked() {
  std::size_t idle = 0;
  for (auto it = regions_.begin(); it != regions_.end();) {
    const std::size_t size = it->second.segment.size();
    if (it->second.used.empty() && (idle += size) > cachedBytes_) {
      held_ -= size;
      idle -= size;
      it = regions_.erase(it);
    } else {
      ++it;
    }
  }
}

std::optional<SharedLocation> SharedHeap::locate(const void* data, std::size_t bytes) const {
  const std::lock_guard lock(mutex_);
  const auto it = regionOfLocked(data);
  if (it == regions_.end()) return std::nullopt;
  const std::uint64_t offset = reinterpret_cast<std::uintptr_t>(data) - it->first;
  if (bytes > it->second.segment.size() - offset) return std::nullopt;
  return SharedLocation{it->second.segment.ref(), offset};
}

std::size_t SharedHeap::heldBytes() const {
  const std::lock_guard lock(mutex_);
  return held_;
}

std::size_t SharedHeap::usedBytes() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

}  // namespace dtorch
