#include "client/cpp/host_tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "absl/strings/str_join.h"
#include "shm/bulk_copy.h"

namespace dtorch {
namespace {

/// A floating-point format narrower than float.
struct SmallFloat {
  int exponentBits;
  int mantissaBits;
  int bias;
  enum Specials { kIeee, kOnlyNan, kNegativeZeroIsNan } specials;
};

std::optional<SmallFloat> smallFloat(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return SmallFloat{5, 10, 15, SmallFloat::kIeee};
    case DType::kBFloat16:
      return SmallFloat{8, 7, 127, SmallFloat::kIeee};
    case DType::kFloat8E4M3FN:
      return SmallFloat{4, 3, 7, SmallFloat::kOnlyNan};
    case DType::kFloat8E5M2:
      return SmallFloat{5, 2, 15, SmallFloat::kIeee};
    case DType::kFloat8E4M3FNUZ:
      return SmallFloat{4, 3, 8, SmallFloat::kNegativeZeroIsNan};
    case DType::kFloat8E5M2FNUZ:
      return SmallFloat{5, 2, 16, SmallFloat::kNegativeZeroIsNan};
    default:
      return std::nullopt;
  }
}

double decode(std::uint32_t bits, const SmallFloat& format) {
  const int maxExponent = (1 << format.exponentBits) - 1;
  const int maxMantissa = (1 << format.mantissaBits) - 1;
  const int exponent = static_cast<int>(bits >> format.mantissaBits) & maxExponent;
  const int mantissa = static_cast<int>(bits) & maxMantissa;
  const bool negative = (bits >> (format.exponentBits + format.mantissaBits)) != 0;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  double magnitude = std::ldexp(mantissa + (exponent == 0 ? 0 : maxMantissa + 1),
                                std::max(exponent, 1) - format.bias - format.mantissaBits);
  if (format.specials == SmallFloat::kNegativeZeroIsNan && negative && magnitude == 0) return nan;
  if (exponent == maxExponent) {
    if (format.specials == SmallFloat::kIeee) magnitude = mantissa == 0 ? std::numeric_limits<double>::infinity() : nan;
    if (format.specials == SmallFloat::kOnlyNan && mantissa == maxMantissa) magnitude = nan;
  }
  return negative ? -magnitude : magnitude;
}

template <typename T>
double read(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof(T));
  return static_cast<double>(value);
}

/// Copies `count` elements that lie `stride` elements apart.
template <std::size_t Size>
void copyStrided(const std::byte* from, std::int64_t stride, std::int64_t count, std::byte* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    std::memcpy(to + static_cast<std::size_t>(i) * Size, from + i * stride * static_cast<std::int64_t>(Size), Size);
  }
}

void copyRun(const std::byte* from, std::int64_t stride, std::int64_t count, std::size_t size, std::byte* to) {
  if (stride == 1) {
    bulkCopy(to, from, static_cast<std::size_t>(count) * size);
    return;
  }
  switch (size) {
    case 1:
      return copyStrided<1>(from, stride, count, to);
    case 2:
      return copyStrided<2>(from, stride, count, to);
    case 4:
      return copyStrided<4>(from, stride, count, to);
    case 8:
      return copyStrided<8>(from, stride, count, to);
    default:
      return copyStrided<16>(from, stride, count, to);
  }
}

/// Shape and strides with neighbouring dimensions merged where they are contiguous with each other; never empty.
std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>> mergeDims(const TensorMeta& meta) {
  const std::vector<std::int64_t> given = meta.strides.empty() ? contiguousStrides(meta.shape) : meta.strides;
  std::vector<std::int64_t> shape{1};
  std::vector<std::int64_t> strides{1};
  for (std::size_t d = 0; d < meta.shape.size(); ++d) {
    if (meta.shape[d] == 1) continue;
    if (shape.back() == 1) {
      shape.back() = meta.shape[d];
      strides.back() = given[d];
    } else if (strides.back() == given[d] * meta.shape[d]) {
      shape.back() *= meta.shape[d];
      strides.back() = given[d];
    } else {
      shape.push_back(meta.shape[d]);
      strides.push_back(given[d]);
    }
  }
  return {shape, strides};
}

}  // namespace

absl::StatusOr<TensorMeta> checkView(const HostView& view) {
  absl::StatusOr<TensorMeta> contiguous = makeMeta(view.meta.dtype, view.meta.shape);
  if (!contiguous.ok()) return contiguous.status();
  const std::vector<std::int64_t>& strides = view.meta.strides.empty() ? contiguous->strides : view.meta.strides;
  if (strides.size() != view.meta.shape.size()) {
    return absl::InvalidArgumentError(absl::StrCat(strides.size(), " strides were given for ", contiguous->toString()));
  }
  if (contiguous->numel() == 0) return contiguous;
  std::int64_t needed = 1;  // elements up to the last one touched
  bool overflow = false;
  for (std::size_t d = 0; d < strides.size(); ++d) {
    if (strides[d] < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("strides [", absl::StrJoin(strides, ", "), "] have a negative entry: copy the tensor first"));
    }
    std::int64_t reach = 0;
    overflow |= __builtin_mul_overflow(view.meta.shape[d] - 1, strides[d], &reach);
    overflow |= __builtin_add_overflow(needed, reach, &needed);
  }
  overflow |= __builtin_mul_overflow(needed, elementSize(view.meta.dtype), &needed);
  if (overflow || static_cast<std::uint64_t>(needed) > view.bytes) {
    return absl::InvalidArgumentError(absl::StrCat(contiguous->toString(), " with strides [",
                                                   absl::StrJoin(strides, ", "), "] reaches past the ", view.bytes,
                                                   " bytes of host memory that were given"));
  }
  return contiguous;
}

void copyElements(const HostView& view, std::int64_t first, std::int64_t count, std::byte* out) {
  if (count == 0) return;
  const auto [shape, strides] = mergeDims(view.meta);
  const auto size = static_cast<std::size_t>(elementSize(view.meta.dtype));
  std::vector<std::int64_t> index(shape.size());
  std::int64_t offset = 0;  // of `index`, in elements
  for (std::size_t d = shape.size(); d-- > 0;) {
    index[d] = first % shape[d];
    first /= shape[d];
    offset += index[d] * strides[d];
  }
  const std::size_t last = shape.size() - 1;
  while (count > 0) {
    const std::int64_t run = std::min(count, shape[last] - index[last]);
    copyRun(view.data + offset * static_cast<std::int64_t>(size), strides[last], run, size, out);
    out += static_cast<std::size_t>(run) * size;
    count -= run;
    index[last] += run;
    offset += run * strides[last];
    for (std::size_t d = last; d > 0 && index[d] == shape[d]; --d) {
      offset += strides[d - 1] - index[d] * strides[d];
      index[d] = 0;
      ++index[d - 1];
    }
  }
}

absl::StatusOr<double> HostTensor::item() const {
  if (data_ == nullptr || numel() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("item() of a tensor ", meta_.toString(), ": it needs exactly one element"));
  }
  const std::byte* data = data_.get();
  switch (meta_.dtype) {
    case DType::kBool:
    case DType::kUInt8:
      return read<std::uint8_t>(data);
    case DType::kInt8:
      return read<std::int8_t>(data);
    case DType::kUInt16:
      return read<std::uint16_t>(data);
    case DType::kInt16:
      return read<std::int16_t>(data);
    case DType::kUInt32:
      return read<std::uint32_t>(data);
    case DType::kInt32:
      return read<std::int32_t>(data);
    case DType::kUInt64:
      return read<std::uint64_t>(data);
    case DType::kInt64:
      return read<std::int64_t>(data);
    case DType::kFloat32:
      return read<float>(data);
    case DType::kFloat64:
      return read<double>(data);
    default:
      break;
  }
  const std::optional<SmallFloat> format = smallFloat(meta_.dtype);
  if (!format)
    return absl::InvalidArgumentError(
        absl::StrCat("item() of a tensor ", meta_.toString(), ": it is not a real number"));
  std::uint32_t bits = 0;
  std::memcpy(&bits, data, static_cast<std::size_t>(elementSize(meta_.dtype)));
  return decode(bits, *format);
}

}  // namespace dtorch
