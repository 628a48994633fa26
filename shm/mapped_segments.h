#pragma once
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>

#include "absl/status/statusor.h"
#include "shm/segment.h"

namespace dtorch {

/// Other processes' segments as this process has mapped them, kept for the next use: mapping 64 MiB with its pages
/// costs more than copying it. The least recently used go first, above a number of segments or of bytes; whoever holds
/// one keeps it.
///
/// Thread: safe.
class MappedSegments {
 public:
  explicit MappedSegments(std::size_t limit, std::size_t bytes = SIZE_MAX) : limit_(limit), byteLimit_(bytes) {}
  /// NOT_FOUND: its owner is gone, or gave it up.
  absl::StatusOr<std::shared_ptr<Segment>> map(const SegmentRef& ref);
  /// Takes over a descriptor. INVALID_ARGUMENT: not of a segment.
  absl::StatusOr<std::shared_ptr<Segment>> adopt(int fd);
  std::size_t size() const;

 private:
  std::shared_ptr<Segment> addLocked(Segment segment);

  const std::size_t limit_;
  const std::size_t byteLimit_;
  mutable std::mutex mutex_;
  std::list<std::shared_ptr<Segment>> recent_;  // most recent first
  std::size_t bytes_ = 0;
};

}  // namespace dtorch
