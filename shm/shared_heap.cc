#include "shm/shared_heap.h"

#include <algorithm>
#include <cstring>
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

void* SharedHeap::allocate(std::size_t bytes, Owner owner) {
  if (bytes > SIZE_MAX / 2) return nullptr;
  const std::size_t size = roundUp(bytes);
  Taken taken;
  {
    const std::lock_guard lock(mutex_);
    taken = allocateLocked(size, owner);
  }
  // Outside the lock: the block is this caller's already.
  if (taken.before != kNobody && taken.before != owner) std::memset(taken.data, 0, size);
  return taken.data;
}

SharedHeap::Taken SharedHeap::allocateLocked(std::size_t size, Owner owner) {
  const bool own = size > kOwnRegion;
  Region* best = nullptr;
  std::size_t least = SIZE_MAX;
  for (auto& [address, region] : regions_) {
    // A region of its own serves blocks of at least three quarters of its size, so that it is never mostly waste.
    if (region.own != own || (own && size < region.segment->size() / 4 * 3)) continue;
    if (region.bound && *region.bound != owner) continue;
    for (const auto& [offset, run] : region.free) {
      if (run.bytes >= size && run.bytes < least) {
        best = &region;
        least = run.bytes;
      }
    }
  }
  if (best == nullptr) best = addRegionLocked(own ? size : kSharedRegion, own);
  return best == nullptr ? Taken{} : takeLocked(*best, size, owner);
}

SharedHeap::Region* SharedHeap::addRegionLocked(std::size_t bytes, bool own) {
  auto segment = Segment::create("dtorch-heap", bytes);
  if (!segment.ok()) return nullptr;
  const auto address = reinterpret_cast<std::uintptr_t>(segment->data());
  Region& region = regions_[address];
  region.segment = std::make_shared<Segment>(*std::move(segment));
  region.own = own;
  region.free[0] = {region.segment->size(), kNobody};
  held_ += region.segment->size();
  return &region;
}

SharedHeap::Taken SharedHeap::takeLocked(Region& region, std::size_t bytes, Owner owner) {
  auto best = region.free.end();
  for (auto it = region.free.begin(); it != region.free.end(); ++it) {
    if (it->second.bytes >= bytes && (best == region.free.end() || it->second.bytes < best->second.bytes)) best = it;
  }
  const auto [offset, run] = *best;
  region.free.erase(best);
  if (run.bytes > bytes) region.free[offset + bytes] = {run.bytes - bytes, run.owner};
  region.used[offset] = {bytes, owner};
  used_ += bytes;
  return {region.segment->data() + offset, run.owner};
}

SharedHeap::Owner SharedHeap::merged(Owner a, Owner b) {
  if (a == b || b == kNobody) return a;
  return a == kNobody ? b : kSeveral;
}

SharedHeap::Regions::const_iterator SharedHeap::regionOfLocked(const void* data) const {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  auto it = regions_.upper_bound(address);
  if (it == regions_.begin()) return regions_.end();
  --it;
  return address < it->first + it->second.segment->size() ? it : regions_.end();
}

bool SharedHeap::release(void* block) {
  const std::lock_guard lock(mutex_);
  const auto it = regionOfLocked(block);
  if (it == regions_.end()) return false;
  Region& region = regions_.at(it->first);
  const auto used = region.used.find(reinterpret_cast<std::uintptr_t>(block) - it->first);
  if (used == region.used.end()) return false;
  used_ -= used->second.bytes;
  auto free = region.free.insert({used->first, used->second}).first;
  region.used.erase(used);
  const auto absorb = [&region](auto run, auto next) {
    if (next == region.free.end() || run->first + run->second.bytes != next->first) return;
    run->second = {run->second.bytes + next->second.bytes, merged(run->second.owner, next->second.owner)};
    region.free.erase(next);
  };
  absorb(free, std::next(free));
  if (free != region.free.begin()) absorb(std::prev(free), free);
  if (region.used.empty()) trimLocked(cachedBytes_);
  return true;
}

std::shared_ptr<Segment> SharedHeap::lend(const void* block, Owner owner) {
  const std::lock_guard lock(mutex_);
  const auto it = regionOfLocked(block);
  if (it == regions_.end()) return nullptr;
  Region& region = regions_.at(it->first);
  const auto isOwners = [owner](const auto& run) { return run.second.owner == owner || run.second.owner == kNobody; };
  const auto used = region.used.find(0);
  if (!region.own || block != region.segment->data() || used == region.used.end() || used->second.owner != owner ||
      !std::all_of(region.free.begin(), region.free.end(), isOwners)) {
    return nullptr;
  }
  region.bound = owner;
  return region.segment;
}

void SharedHeap::forget(Owner owner) {
  const std::lock_guard lock(mutex_);
  for (auto& [address, region] : regions_) {
    if (region.bound == owner) region.bound = kNobody;
  }
  trimLocked(cachedBytes_);
}

void SharedHeap::trim() {
  const std::lock_guard lock(mutex_);
  trimLocked(0);
}

void SharedHeap::trimLocked(std::size_t keptBytes) {
  std::size_t idle = 0;
  for (auto it = regions_.begin(); it != regions_.end();) {
    const std::size_t size = it->second.segment->size();
    const bool useless = it->second.bound == kNobody;
    if (it->second.used.empty() && (useless || (idle += size) > keptBytes)) {
      held_ -= size;
      if (!useless) idle -= size;
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
  if (bytes > it->second.segment->size() - offset) return std::nullopt;
  return SharedLocation{it->second.segment->ref(), offset};
}

}  // namespace dtorch
