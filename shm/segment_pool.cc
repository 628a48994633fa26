#include "shm/segment_pool.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "shm/bulk_copy.h"

namespace dtorch {

absl::StatusOr<std::shared_ptr<Segment>> SegmentPool::take(Owner owner, std::size_t bytes) {
  if (auto given = takeGiven(owner, bytes)) return given;
  auto segment = Segment::create("dtorch-pool", bytes);
  if (!segment.ok()) return segment.status();
  return std::make_shared<Segment>(*std::move(segment));
}

absl::StatusOr<std::shared_ptr<Segment>> SegmentPool::takeCopyOf(Owner owner, const std::byte* data,
                                                                 std::size_t bytes) {
  if (auto given = takeGiven(owner, bytes)) {
    bulkCopy(given->data(), data, bytes);
    return given;
  }
  auto segment = Segment::copyOf("dtorch-pool", data, bytes);
  if (!segment.ok()) return segment.status();
  return std::make_shared<Segment>(*std::move(segment));
}

std::shared_ptr<Segment> SegmentPool::takeGiven(Owner owner, std::size_t bytes) {
  std::shared_ptr<Segment> segment;
  {
    const std::lock_guard lock(mutex_);
    // At least three quarters of it are used, so that what is kept long is never mostly waste.
    const auto found = std::find_if(idle_.begin(), idle_.end(), [&](const Idle& idle) {
      const std::size_t size = idle.segment->size();
      return idle.owner == owner && size >= bytes && bytes >= size / 4 * 3;
    });
    if (found == idle_.end()) return nullptr;
    segment = std::move(found->segment);
    idle_.erase(found);
    bytes_ -= segment->size();
  }
  segment->populate();
  return segment;
}

void SegmentPool::give(Owner owner, std::shared_ptr<Segment> segment) {
  std::list<Idle> freed;  // outlives the lock: unmapping takes its time
  const std::lock_guard lock(mutex_);
  bytes_ += segment->size();
  idle_.push_front({owner, std::move(segment)});
  while (bytes_ > idleBytes_) {
    bytes_ -= idle_.back().segment->size();
    freed.splice(freed.begin(), idle_, std::prev(idle_.end()));
  }
}

void SegmentPool::forget(Owner owner) {
  std::list<Idle> freed;
  const std::lock_guard lock(mutex_);
  for (auto it = idle_.begin(); it != idle_.end();) {
    const auto next = std::next(it);
    if (it->owner == owner) {
      bytes_ -= it->segment->size();
      freed.splice(freed.begin(), idle_, it);
    }
    it = next;
  }
}

std::size_t SegmentPool::idleBytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace dtorch
