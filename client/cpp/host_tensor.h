#pragma once
#include <complex>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "core/tensor_meta.h"

namespace dtorch {

/// The DType of a C++ element type; does not compile for types that have none.
template <typename T>
constexpr DType dtypeOf() {
  if constexpr (std::is_same_v<T, bool>)
    return DType::kBool;
  else if constexpr (std::is_same_v<T, float>)
    return DType::kFloat32;
  else if constexpr (std::is_same_v<T, double>)
    return DType::kFloat64;
  else if constexpr (std::is_same_v<T, std::complex<float>>)
    return DType::kComplex64;
  else if constexpr (std::is_same_v<T, std::complex<double>>)
    return DType::kComplex128;
  else {
    static_assert(std::is_integral_v<T>, "no dtype has this element type; use HostView::raw");
    constexpr bool kSigned = std::is_signed_v<T>;
    switch (sizeof(T)) {
      case 1:
        return kSigned ? DType::kInt8 : DType::kUInt8;
      case 2:
        return kSigned ? DType::kInt16 : DType::kUInt16;
      case 4:
        return kSigned ? DType::kInt32 : DType::kUInt32;
      default:
        return kSigned ? DType::kInt64 : DType::kUInt64;
    }
  }
}

/// Borrowed host memory seen as a tensor: what put() copies from. Checked by put(), not here.
struct HostView {
  const std::byte* data = nullptr;
  std::size_t bytes = 0;  // that may be read from `data`
  TensorMeta meta;        // strides in elements, not negative; 0 repeats; none: contiguous

  /// `values` is contiguous memory (vector, array, span) and must outlive the view.
  template <typename Range>
  static HostView of(const Range& values, std::vector<std::int64_t> shape, std::vector<std::int64_t> strides = {}) {
    using T = std::remove_cv_t<std::remove_pointer_t<decltype(std::data(values))>>;
    return raw(std::data(values), std::size(values) * sizeof(T), dtypeOf<T>(), std::move(shape), std::move(strides));
  }
  /// For element types that C++ does not have, such as bfloat16.
  static HostView raw(const void* data, std::size_t bytes, DType dtype, std::vector<std::int64_t> shape,
                      std::vector<std::int64_t> strides = {}) {
    return {static_cast<const std::byte*>(data), bytes, {dtype, std::move(shape), std::move(strides)}};
  }
};

/// INVALID_ARGUMENT: a bad shape, dtype or stride, or memory that ends before the tensor does. Else the contiguous
/// meta.
absl::StatusOr<TensorMeta> checkView(const HostView& view);
/// Whether the elements of a checked view lie in row-major order, one after the other.
bool isContiguous(const HostView& view);
/// Copies the elements [first, first + count) in row-major order of a checked view, as contiguous bytes.
void copyElements(const HostView& view, std::int64_t first, std::int64_t count, std::byte* out);

/// A tensor's value in host memory, contiguous. Immutable, cheap to copy.
class HostTensor {
 public:
  HostTensor() = default;
  HostTensor(TensorMeta meta, std::shared_ptr<const std::byte[]> data)
      : meta_(std::move(meta)), data_(std::move(data)) {}

  const TensorMeta& meta() const { return meta_; }
  DType dtype() const { return meta_.dtype; }
  const std::vector<std::int64_t>& shape() const { return meta_.shape; }
  std::int64_t numel() const { return meta_.numel(); }
  absl::Span<const std::byte> bytes() const { return {data_.get(), static_cast<std::size_t>(meta_.bytes())}; }

  /// The elements in row-major order. INVALID_ARGUMENT when T is not the tensor's dtype.
  template <typename T>
  absl::StatusOr<absl::Span<const T>> values() const {
    if (dtypeOf<T>() != meta_.dtype) {
      return absl::InvalidArgumentError(
          absl::StrCat("values of ", name(dtypeOf<T>()), " asked of a tensor ", meta_.toString()));
    }
    return absl::Span<const T>(reinterpret_cast<const T*>(data_.get()), static_cast<std::size_t>(numel()));
  }
  /// The only element, as a double. INVALID_ARGUMENT: not exactly one element, or a complex dtype.
  absl::StatusOr<double> item() const;

 private:
  TensorMeta meta_;
  std::shared_ptr<const std::byte[]> data_;
};

}  // namespace dtorch
