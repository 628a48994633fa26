#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "shm/mapped_segments.h"
#include "shm/shared_heap.h"

namespace dtorch {

/// Where a rank's bytes lie, for the other ranks of its host. Written to shared memory as it is.
struct BufferRef {
  std::int64_t pid = 0;
  /// In process `pid`.
  std::uint64_t address = 0;
  /// For other processes; fd < 0: the bytes are not in shared memory.
  SegmentRef segment;
  std::uint64_t offset = 0;

  bool isShared() const { return segment.fd >= 0; }
};

/// Makes bytes of this process known to peers, and reaches theirs where they are: by address in the same process, by
/// segment and offset in others.
///
/// Thread: safe.
class PeerMemory {
 public:
  /// `heap` may be null: then nothing of this process is shared.
  explicit PeerMemory(const SharedHeap* heap);

  /// For peers of this process alone.
  BufferRef describeHere(const std::byte* data) const;
  BufferRef describe(const std::byte* data, std::size_t bytes) const;
  /// A peer's bytes, and what keeps them mapped.
  struct Access {
    std::byte* data = nullptr;
    std::shared_ptr<Segment> segment;
  };
  /// NOT_FOUND: their owner is gone. FAILED_PRECONDITION: not shared.
  absl::StatusOr<Access> open(const BufferRef& buffer);

 private:
  static constexpr std::size_t kMappings = 64;

  const std::int64_t pid_;
  const SharedHeap* heap_;
  MappedSegments mapped_{kMappings};
};

}  // namespace dtorch
