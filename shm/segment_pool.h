#pragma once
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>

#include "absl/status/statusor.h"
#include "shm/segment.h"

namespace dtorch {

/// Segments of this process that are used again, each for what belongs to the same owner: their memory, fresh, costs
/// several times what is copied into it. The least recently used are freed first.
///
/// Thread: safe.
class SegmentPool {
 public:
  using Owner = std::uint64_t;

  explicit SegmentPool(std::size_t idleBytes) : idleBytes_(idleBytes) {}
  /// At least `bytes` bytes, of any content of the owner's, or zeros. RESOURCE_EXHAUSTED.
  absl::StatusOr<std::shared_ptr<Segment>> take(Owner owner, std::size_t bytes);
  /// The same, with a copy of these bytes in it: about half of the time where the memory is fresh.
  absl::StatusOr<std::shared_ptr<Segment>> takeCopyOf(Owner owner, const std::byte* data, std::size_t bytes);
  /// Nobody uses it any more.
  void give(Owner owner, std::shared_ptr<Segment> segment);
  /// Frees what the owner has given. Nothing may be given for it later.
  void forget(Owner owner);
  std::size_t idleBytes() const;

 private:
  /// nullptr: nothing given is of about that size.
  std::shared_ptr<Segment> takeGiven(Owner owner, std::size_t bytes);

  struct Idle {
    Owner owner;
    std::shared_ptr<Segment> segment;
  };

  const std::size_t idleBytes_;
  mutable std::mutex mutex_;
  std::list<Idle> idle_;  // the last given first
  std::size_t bytes_ = 0;
};

}  // namespace dtorch
