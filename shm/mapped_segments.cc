#include "shm/mapped_segments.h"

#include <algorithm>
#include <utility>

namespace dtorch {

absl::StatusOr<std::shared_ptr<Segment>> MappedSegments::map(const SegmentRef& ref) {
  const std::lock_guard lock(mutex_);
  const auto known = std::find_if(recent_.begin(), recent_.end(), [&ref](const auto& s) { return s->ref() == ref; });
  if (known != recent_.end()) {
    recent_.splice(recent_.begin(), recent_, known);
    return recent_.front();
  }
  auto segment = Segment::open(ref);
  if (!segment.ok()) return segment.status();
  recent_.push_front(std::make_shared<Segment>(*std::move(segment)));
  if (recent_.size() > limit_) recent_.pop_back();
  return recent_.front();
}

std::size_t MappedSegments::size() const {
  const std::lock_guard lock(mutex_);
  return recent_.size();
}

}  // namespace dtorch
