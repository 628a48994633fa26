#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/ids.h"

namespace dtorch {

enum class DeviceType : std::uint8_t { kCpu = 1, kCuda = 2 };
absl::string_view name(DeviceType type);

inline constexpr std::size_t kMaxMeshDims = 8;
inline constexpr std::size_t kMaxMeshNameBytes = 64;

/// An n-dimensional, row-major arrangement of distinct ranks of one device type.
class DeviceMesh {
 public:
  /// INVALID_ARGUMENT: no or a non-positive extent, a repeated or negative rank, a count of ranks or names that does
  /// not fit the shape, a repeated name. `names` may be empty.
  static absl::StatusOr<DeviceMesh> create(DeviceType type, std::vector<std::int64_t> shape, std::vector<Rank> ranks,
                                           std::vector<std::string> names = {});

  DeviceType deviceType() const { return type_; }
  const std::vector<std::int64_t>& shape() const { return shape_; }
  const std::vector<Rank>& ranks() const { return ranks_; }
  const std::vector<std::string>& names() const { return names_; }
  int dims() const { return static_cast<int>(shape_.size()); }
  std::int64_t size() const { return static_cast<std::int64_t>(ranks_.size()); }

  /// Position of `rank` along each mesh dimension. NOT_FOUND when the mesh does not hold it.
  absl::StatusOr<std::vector<std::int64_t>> coordinate(Rank rank) const;
  /// The ranks that differ from `coordinate` in dimension `dim` only, in order of that dimension.
  std::vector<Rank> ranksAlong(int dim, const std::vector<std::int64_t>& coordinate) const;
  /// "cpu[2, 3](0, 1, 2, 3, 4, 5)".
  std::string toString() const;

  friend bool operator==(const DeviceMesh&, const DeviceMesh&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const DeviceMesh& m) {
    return H::combine(std::move(h), m.type_, m.shape_, m.ranks_, m.names_);
  }

 private:
  DeviceMesh(DeviceType type, std::vector<std::int64_t> shape, std::vector<Rank> ranks, std::vector<std::string> names);
  DeviceType type_;
  std::vector<std::int64_t> shape_;
  std::vector<Rank> ranks_;
  std::vector<std::string> names_;
};

}  // namespace dtorch
