#include "worker/kernel_check.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/isinf.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/view_as_real.h>

#include <algorithm>
#include <cmath>
#include <exception>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "dispatch/dtype.h"
#include "dispatch/prepared_call.h"

namespace dtorch {
namespace {

bool hasFractions(const at::Tensor& tensor) {
  return tensor.defined() && (tensor.is_floating_point() || tensor.is_complex()) && tensor.numel() > 0 &&
         !tensor.is_meta();
}

// The tensor's numbers in a dtype that LibTorch can test; those of a complex tensor along one more dimension.
at::Tensor realNumbers(const at::Tensor& tensor) {
  const at::Tensor real = tensor.is_complex() ? at::view_as_real(tensor.resolve_conj()) : tensor;
  const bool tested = real.scalar_type() == at::kFloat || real.scalar_type() == at::kDouble;
  return tested ? real : real.to(at::kFloat);
}

bool holdsTrue(const at::Tensor& mask) { return mask.any().item<bool>(); }

std::size_t checksum(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.is_meta()) return 0;
  const c10::Storage& storage = tensor.storage();
  return absl::HashOf(absl::string_view(static_cast<const char*>(storage.data()), storage.nbytes()));
}

std::string looks(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided) return describe(tensor);
  return absl::StrCat(describe(tensor), " of strides [", absl::StrJoin(tensor.strides(), ", "), "] at offset ",
                      tensor.storage_offset(), " of ",
                      absl::Hex(reinterpret_cast<std::uintptr_t>(tensor.storage().data())));
}

// The index of the first true element of a mask, in row-major order.
std::vector<std::int64_t> firstOf(const at::Tensor& mask) {
  const at::Tensor flat = mask.cpu().contiguous();
  const bool* begin = flat.const_data_ptr<bool>();
  std::int64_t position = std::find(begin, begin + flat.numel(), true) - begin;
  std::vector<std::int64_t> index(static_cast<std::size_t>(mask.dim()));
  for (std::size_t d = index.size(); d-- > 0;) {
    index[d] = position % mask.size(static_cast<std::int64_t>(d));
    position /= mask.size(static_cast<std::int64_t>(d));
  }
  return index;
}

}  // namespace

std::string describe(c10::ScalarType dtype, absl::Span<const std::int64_t> shape) {
  const absl::StatusOr<DType> known = fromTorch(dtype);
  return absl::StrCat(known.ok() ? name(*known) : c10::toString(dtype), "[", absl::StrJoin(shape, ", "), "]");
}

std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return "None";
  return describe(tensor.scalar_type(), {tensor.sizes().data(), tensor.sizes().size()});
}

KernelCheck::KernelCheck(const KernelAction& action, absl::Span<const at::Tensor> tensors) : action_(action) {
  const auto addNumber = [&](double number) {
    mayBeNan_ = mayBeNan_ || std::isnan(number);
    mayBeInfinite_ = mayBeInfinite_ || !std::isfinite(number);
  };
  try {
    for (const c10::IValue& constant : action.call.constants()) {
      if (constant.isDouble()) addNumber(constant.toDouble());
      if (constant.isComplexDouble()) addNumber(std::abs(constant.toComplexDouble()));
      if (constant.isDoubleList()) {
        for (const double number : constant.toDoubleVector()) addNumber(number);
      }
    }
    for (const std::uint32_t slot : action.reads) {
      const at::Tensor& tensor = tensors[slot];
      const bool written = std::any_of(action.writes.begin(), action.writes.end(), [&](std::uint32_t other) {
        return tensor.defined() && tensors[other].defined() && tensor.is_alias_of(tensors[other]);
      });
      const bool empty = tensor.defined() && tensor.numel() == 0;
      inputs_.push_back({slot, written, empty, looks(tensor), written ? 0 : checksum(tensor)});
      // The mean of nothing is NaN, the greatest of nothing -inf.
      mayBeNan_ = mayBeNan_ || empty;
      mayBeInfinite_ = mayBeInfinite_ || empty;
      if (!hasFractions(tensor)) continue;
      const at::Tensor numbers = realNumbers(tensor);
      if (at::isfinite(numbers).all().item<bool>()) continue;
      mayBeInfinite_ = true;
      mayBeNan_ = mayBeNan_ || holdsTrue(at::isnan(numbers));
    }
  } catch (const std::exception& error) {
    status_ = fromException(error);
  }
}

absl::Status KernelCheck::after(absl::Span<const at::Tensor> tensors, absl::Span<const at::Tensor> results) {
  if (!status_.ok()) return status_;
  try {
    if (absl::Status status = checkInputs(tensors); !status.ok()) return status;
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (absl::Status status = checkOutput(i, results[i]); !status.ok()) return status;
    }
  } catch (const std::exception& error) {
    return fromException(error);
  }
  return absl::OkStatus();
}

absl::Status KernelCheck::checkInputs(absl::Span<const at::Tensor> tensors) {
  absl::Status status;
  for (const Input& input : inputs_) {
    const at::Tensor& tensor = tensors[input.slot];
    // Of such results kernels change the shape, too; the planned one is put back.
    if (input.written && input.empty && tensor.numel() == 0) continue;
    const std::string now = looks(tensor);
    const bool same = input.written || checksum(tensor) == input.checksum;
    if (now == input.looks && same) continue;
    changed_.push_back(input.slot);
    if (!status.ok()) continue;
    status = absl::InternalError(absl::StrCat(
        "validation: the kernel changed its argument '", action_.call.argumentOf(input.slot), "', ", input.looks,
        now == input.looks ? ", which its schema does not let it write to" : absl::StrCat(", which is now ", now)));
  }
  return status;
}

absl::Status KernelCheck::checkOutput(std::size_t index, const at::Tensor& tensor) const {
  if (!hasFractions(tensor) || mayBeNan_) return absl::OkStatus();
  const at::Tensor numbers = realNumbers(tensor);
  at::Tensor bad = mayBeInfinite_ ? at::isnan(numbers) : at::isfinite(numbers).logical_not();
  if (!holdsTrue(bad)) return absl::OkStatus();
  if (tensor.is_complex()) bad = bad.any(-1);
  const std::vector<std::int64_t> first = firstOf(bad);
  at::Tensor value = numbers;
  for (const std::int64_t i : first) value = value.select(0, i);
  const bool nan = holdsTrue(at::isnan(value));
  const bool negative = !tensor.is_complex() && value.item<double>() < 0;
  return absl::OutOfRangeError(absl::StrCat(
      "validation: output ", index, ", ", describe(tensor), " here, has ", nan ? "NaN" : (negative ? "-inf" : "inf"),
      " at [", absl::StrJoin(first, ", "), "], ", bad.sum().item<std::int64_t>(),
      " such elements in all; no input has ", mayBeInfinite_ ? "a NaN" : "a NaN or an infinity"));
}

}  // namespace dtorch
