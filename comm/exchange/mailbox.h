#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "core/ids.h"
#include "shm/segment.h"

namespace dtorch {

/// A rank's notice board: a segment in which it publishes, by key, the segments of the groups that it founded.
///
/// Thread: safe for readers; one writer, the owner.
class Mailbox {
 public:
  struct Key {
    std::uint64_t epoch = 0;
    std::uint64_t digest = 0;
    friend bool operator==(const Key&, const Key&) = default;
  };
  static Key keyOf(std::uint64_t epoch, const std::vector<Rank>& ranks);

  /// Opens this rank's own.
  static absl::StatusOr<Mailbox> create();
  /// Opens a peer's. NOT_FOUND: the peer is gone.
  static absl::StatusOr<Mailbox> open(const SegmentRef& ref);

  const SegmentRef& ref() const { return segment_.ref(); }

  /// RESOURCE_EXHAUSTED: 4096 notices of this epoch are up. Those of older epochs make room.
  absl::Status publish(const Key& key, const SegmentRef& what);
  /// Waits for the notice of `key`. DEADLINE_EXCEEDED; ABORTED: `*aborted` became true; what `alive` says when it is
  /// not OK: it is asked again and again.
  absl::StatusOr<SegmentRef> await(const Key& key, const std::function<absl::Status()>& alive,
                                   std::chrono::steady_clock::time_point deadline,
                                   const std::atomic<bool>& aborted) const;

 private:
  struct Board;
  explicit Mailbox(Segment segment);
  std::optional<SegmentRef> find(const Key& key) const;

  Segment segment_;
  Board* board_;
};

}  // namespace dtorch
