#include "shm/segment_pool.h"

#include <iterator>
#include <utility>

namespace dtorch {

absl::StatusOr<std::shared_ptr<Segment>> SegmentPool::take(Owner owner, std::size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    for (auto it = idle_.begin(); it != idle_.end(); ++it) {
      const std::size_t size = it->segment->size();
      // At least three quarters of it are used, so that what is kept long is never mostly waste.
      if (it->owner != owner || size < bytes || bytes < size / 4 * 3) continue;
      std::shared_ptr<Segment> segment = std::move(it->segment);
      idle_.erase(it);
      bytes_ -= size;
      return segment;
    }
  }
  auto segment = Segment::create("dtorch-pool", bytes);
  if (!segment.ok()) return segment.status();
  return std::make_shared<Segment>(*std::move(segment));
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
