#include "shm/mapped_segments.h"

#include <sys/stat.h>
#include <unistd.h>

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
  return addLocked(*std::move(segment));
}

absl::StatusOr<std::shared_ptr<Segment>> MappedSegments::adopt(int fd) {
  const std::lock_guard lock(mutex_);
  struct stat info {};
  // A number is nobody else's as long as the segment is mapped here.
  const bool stats = ::fstat(fd, &info) == 0;
  const auto known = std::find_if(recent_.begin(), recent_.end(),
                                  [&](const auto& s) { return stats && s->ref().inode == info.st_ino; });
  if (known != recent_.end()) {
    ::close(fd);
    recent_.splice(recent_.begin(), recent_, known);
    return recent_.front();
  }
  auto segment = Segment::adopt(fd);
  if (!segment.ok()) return segment.status();
  return addLocked(*std::move(segment));
}

std::shared_ptr<Segment> MappedSegments::addLocked(Segment segment) {
  auto added = std::make_shared<Segment>(std::move(segment));
  recent_.push_front(added);
  bytes_ += added->size();
  while (recent_.size() > limit_ || bytes_ > byteLimit_) {
    bytes_ -= recent_.back()->size();
    recent_.pop_back();
  }
  return added;
}

std::size_t MappedSegments::size() const {
  const std::lock_guard lock(mutex_);
  return recent_.size();
}

}  // namespace dtorch
