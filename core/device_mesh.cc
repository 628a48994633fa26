#include "core/device_mesh.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace dtorch {

absl::string_view name(DeviceType type) { return type == DeviceType::kCuda ? "cuda" : "cpu"; }

DeviceMesh::DeviceMesh(DeviceType type, std::vector<std::int64_t> shape, std::vector<Rank> ranks,
                       std::vector<std::string> names)
    : type_(type), shape_(std::move(shape)), ranks_(std::move(ranks)), names_(std::move(names)) {}

absl::StatusOr<DeviceMesh> DeviceMesh::create(DeviceType type, std::vector<std::int64_t> shape, std::vector<Rank> ranks,
                                              std::vector<std::string> names) {
  if (shape.empty()) return absl::InvalidArgumentError("a mesh needs at least one dimension");
  if (shape.size() > kMaxMeshDims) {
    return absl::InvalidArgumentError(
        absl::StrCat("a mesh of ", shape.size(), " dimensions; at most ", kMaxMeshDims, " are allowed"));
  }
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) {
    if (extent <= 0) return absl::InvalidArgumentError(absl::StrCat("mesh extent ", extent, " is not positive"));
    if (__builtin_mul_overflow(count, extent, &count)) {
      return absl::InvalidArgumentError(absl::StrCat("mesh shape [", absl::StrJoin(shape, ", "), "] overflows"));
    }
  }
  if (count != static_cast<std::int64_t>(ranks.size())) {
    return absl::InvalidArgumentError(absl::StrCat("mesh shape [", absl::StrJoin(shape, ", "), "] holds ", count,
                                                   " ranks, ", ranks.size(), " were given"));
  }
  absl::flat_hash_set<Rank> seen;
  for (const Rank rank : ranks) {
    if (rank < 0) return absl::InvalidArgumentError(absl::StrCat("mesh rank ", rank, " is negative"));
    if (!seen.insert(rank).second) return absl::InvalidArgumentError(absl::StrCat("mesh rank ", rank, " is repeated"));
  }
  if (!names.empty()) {
    if (names.size() != shape.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("mesh has ", shape.size(), " dimensions and ", names.size(), " dimension names"));
    }
    const absl::flat_hash_set<std::string> unique(names.begin(), names.end());
    if (unique.size() != names.size()) return absl::InvalidArgumentError("a mesh dimension name is repeated");
    for (const std::string& each : names) {
      if (each.size() > kMaxMeshNameBytes) {
        return absl::InvalidArgumentError(
            absl::StrCat("a mesh dimension name of ", each.size(), " bytes; at most ", kMaxMeshNameBytes));
      }
    }
  }
  return DeviceMesh(type, std::move(shape), std::move(ranks), std::move(names));
}

absl::StatusOr<std::vector<std::int64_t>> DeviceMesh::coordinate(Rank rank) const {
  const auto it = std::find(ranks_.begin(), ranks_.end(), rank);
  if (it == ranks_.end()) return absl::NotFoundError(absl::StrCat("rank ", rank, " is not in mesh ", toString()));
  std::int64_t flat = it - ranks_.begin();
  std::vector<std::int64_t> result(shape_.size());
  for (std::size_t d = shape_.size(); d-- > 0;) {
    result[d] = flat % shape_[d];
    flat /= shape_[d];
  }
  return result;
}

std::vector<Rank> DeviceMesh::ranksAlong(int dim, const std::vector<std::int64_t>& coordinate) const {
  std::vector<Rank> result;
  std::vector<std::int64_t> at = coordinate;
  for (std::int64_t i = 0; i < shape_[static_cast<std::size_t>(dim)]; ++i) {
    at[static_cast<std::size_t>(dim)] = i;
    std::int64_t flat = 0;
    for (std::size_t d = 0; d < shape_.size(); ++d) flat = flat * shape_[d] + at[d];
    result.push_back(ranks_[static_cast<std::size_t>(flat)]);
  }
  return result;
}

std::string DeviceMesh::toString() const {
  return absl::StrCat(name(type_), "[", absl::StrJoin(shape_, ", "), "](", absl::StrJoin(ranks_, ", "), ")");
}

}  // namespace dtorch
