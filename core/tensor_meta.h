#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/dtype.h"

namespace dtorch {

/// Shape, strides (in elements) and dtype of a tensor; no data.
struct TensorMeta {
  DType dtype = DType::kUnspecified;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;

  std::int64_t numel() const;
  std::int64_t bytes() const { return numel() * elementSize(dtype); }
  /// "float32[3, 4]".
  std::string toString() const;

  friend bool operator==(const TensorMeta&, const TensorMeta&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const TensorMeta& m) {
    return H::combine(std::move(h), m.dtype, m.shape, m.strides);
  }
};

/// Row-major strides of `shape`; an extent of 0 counts as 1, as in torch.
std::vector<std::int64_t> contiguousStrides(const std::vector<std::int64_t>& shape);

/// Strides of a tensor of `shape` without gaps whose dimensions lie in memory in the order of `whole`'s; empty: `whole`
/// has gaps or overlaps. `shape` has as many dimensions, and an extent of 1 wherever `whole` has one.
std::vector<std::int64_t> stridesInOrderOf(const TensorMeta& whole, const std::vector<std::int64_t>& shape);

/// A contiguous tensor's metadata. INVALID_ARGUMENT: unspecified dtype, a negative extent, more than 64 dimensions, or
/// a size in bytes past 2^63 - 1.
absl::StatusOr<TensorMeta> makeMeta(DType dtype, std::vector<std::int64_t> shape);

}  // namespace dtorch
