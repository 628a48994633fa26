#pragma once
#include <boost/interprocess/mapped_region.hpp>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace dtorch {

/// Names a segment to another process of the same user on the same host: it is opened through /proc/<pid>/fd/<fd>, and
/// the inode guards against a reused process id or descriptor.
struct SegmentRef {
  std::int64_t pid = 0;
  std::int32_t fd = -1;
  std::uint64_t inode = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(const SegmentRef&, const SegmentRef&) = default;
};

/// Shared memory without a name: a memfd, allocated in full and sealed against resizing, so that a touch never raises
/// SIGBUS, and mapped with its pages in place, so that a first touch costs nothing. It needs no sweeping:
/// the kernel frees it with the last process that maps it, whatever killed the owner, and no /dev/shm limit applies.
/// Move-only. Owns: the descriptor (creator) and the mapping.
class Segment {
 public:
  Segment() = default;
  /// A zero-filled segment, mapped read-write. `label` shows in /proc/<pid>/maps. RESOURCE_EXHAUSTED: no memory.
  /// INVALID_ARGUMENT: no bytes.
  static absl::StatusOr<Segment> create(const std::string& label, std::size_t bytes);
  /// As create(), but its memory is taken by commit(), part by part, and must not be touched before.
  static absl::StatusOr<Segment> reserve(const std::string& label, std::size_t bytes);
  /// As create(), with a copy of these bytes in place of zeros, which are never written; mapped as it is touched.
  static absl::StatusOr<Segment> copyOf(const std::string& label, const std::byte* data, std::size_t bytes);
  absl::Status commit(std::size_t offset, std::size_t bytes);
  /// Puts the pages of a copyOf() in place for this process; nothing where they are. Best effort: it saves time.
  void populate();
  /// Maps another process's segment (or this process's own). NOT_FOUND: its owner is gone, or closed it.
  static absl::StatusOr<Segment> open(const SegmentRef& ref);
  /// Takes over a descriptor of a segment, of this or another process, and maps it privately: what is written through
  /// this mapping is seen nowhere else. INVALID_ARGUMENT: not a segment.
  static absl::StatusOr<Segment> adoptPrivately(int fd);
  /// The same, mapped as open() does: what either side writes, both see.
  static absl::StatusOr<Segment> adopt(int fd);

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  std::byte* data() const;
  std::size_t size() const;
  /// Valid in other processes as long as this object, the creator's, lives.
  const SegmentRef& ref() const { return ref_; }

 private:
  /// With its pages in place, as they are touched, or for this process alone.
  enum class Mapping { kPopulated, kOnTouch, kPrivate };
  static absl::StatusOr<Segment> make(const std::string& label, std::size_t bytes, bool committed);
  static absl::StatusOr<Segment> adopt(int fd, Mapping mapping);
  static absl::Status map(Segment& segment, int fd, Mapping mapping);

  int fd_ = -1;
  bool onTouch_ = false;
  SegmentRef ref_;
  boost::interprocess::mapped_region region_;
};

}  // namespace dtorch
