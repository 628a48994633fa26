#include "client/cpp/host_tensor.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_join.h"
#include "client/cpp/element.h"
#include "shm/bulk_copy.h"

namespace dtorch {
namespace {

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

bool isContiguous(const HostView& view) {
  const auto [shape, strides] = mergeDims(view.meta);
  return shape.size() == 1 && strides[0] == 1;
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
  if (isComplex(meta_.dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("item() of a tensor ", meta_.toString(), ": it is not a real number"));
  }
  return static_cast<double>(readElement(data_.get(), meta_.dtype).real());
}

}  // namespace dtorch
