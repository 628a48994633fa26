#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/dtype.h"
#include "shm/segment.h"

namespace dtorch {

/// The elements of a tensor as they were at one moment, contiguous: few as bytes, many in a segment of their own.
struct Snapshot {
  /// What travels in a message; more goes by a descriptor.
  static constexpr std::size_t kInlineBytes = 32 << 10;

  DType dtype = DType::kUnspecified;
  std::vector<std::int64_t> shape;
  std::string bytes;
  std::shared_ptr<Segment> segment;

  std::byte* data() { return segment ? segment->data() : reinterpret_cast<std::byte*>(bytes.data()); }
};

/// The value of a future, or why there is none.
using SnapshotOr = absl::StatusOr<std::shared_ptr<Snapshot>>;

}  // namespace dtorch
