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
/// costs more than copying it. The least recently used go first; whoever holds one keeps it.
///
/// Thread: safe.
class MappedSegments {
 public:
  explicit MappedSegments(std::size_t limit) : limit_(limit) {}
  /// NOT_FOUND: its owner is gone, or gave it up.
  absl::StatusOr<std::shared_ptr<Segment>> map(const SegmentRef& ref);
  std::size_t size() const;

 private:
  const std::size_t limit_;
  mutable std::mutex mutex_;
  std::list<std::shared_ptr<Segment>> recent_;  // most recent first
};

}  // namespace dtorch
