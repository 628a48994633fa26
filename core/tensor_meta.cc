#include "core/tensor_meta.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace dtorch {
namespace {

// LibTorch's own limit for most kernels (at::kDimVectorStaticSize aside, TensorIterator refuses more).
constexpr std::size_t kMaxDims = 64;

}  // namespace

std::int64_t TensorMeta::numel() const {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;  // the others' product may overflow
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}

std::string TensorMeta::toString() const { return absl::StrCat(name(dtype), "[", absl::StrJoin(shape, ", "), "]"); }

std::vector<std::int64_t> contiguousStrides(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size());
  std::int64_t step = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    strides[d] = step;
    if (__builtin_mul_overflow(step, std::max<std::int64_t>(shape[d], 1), &step)) {
      return std::vector<std::int64_t>(shape.size(), 1);  // an empty tensor: nothing lies anywhere
    }
  }
  return strides;
}

std::vector<std::int64_t> stridesInOrderOf(const TensorMeta& whole, const std::vector<std::int64_t>& shape) {
  if (whole.strides.size() != shape.size() || whole.numel() == 0) return {};
  std::vector<std::size_t> order(shape.size());  // of the dimensions, from the innermost
  std::iota(order.rbegin(), order.rend(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return whole.strides[a] < whole.strides[b]; });
  std::vector<std::int64_t> strides(shape.size());
  std::int64_t wholeStep = 1;
  std::int64_t step = 1;
  for (const std::size_t d : order) {
    if (whole.shape[d] != 1 && whole.strides[d] != wholeStep) return {};
    wholeStep *= whole.shape[d];
    strides[d] = step;
    step *= std::max<std::int64_t>(shape[d], 1);
  }
  return strides;
}

absl::StatusOr<TensorMeta> makeMeta(DType dtype, std::vector<std::int64_t> shape) {
  if (elementSize(dtype) == 0) return absl::InvalidArgumentError("the tensor's dtype is unspecified");
  if (shape.size() > kMaxDims) {
    return absl::InvalidArgumentError(
        absl::StrCat("a tensor of ", shape.size(), " dimensions; at most ", kMaxDims, " are allowed"));
  }
  std::int64_t bytes = elementSize(dtype);
  bool empty = false;
  bool overflow = false;
  for (const std::int64_t extent : shape) {
    if (extent < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape [", absl::StrJoin(shape, ", "), "] has the negative extent ", extent));
    }
    empty |= extent == 0;
    overflow |= __builtin_mul_overflow(bytes, extent, &bytes);
  }
  if (overflow && !empty) {
    return absl::InvalidArgumentError(
        absl::StrCat("shape [", absl::StrJoin(shape, ", "), "] of ", name(dtype), " holds more than 2^63 - 1 bytes"));
  }
  TensorMeta meta{dtype, std::move(shape), {}};
  meta.strides = contiguousStrides(meta.shape);
  return meta;
}

}  // namespace dtorch
