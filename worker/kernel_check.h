#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/plan.h"

namespace dtorch {

/// "float32[3, 4]"; "None".
std::string describe(const at::Tensor& tensor);
std::string describe(c10::ScalarType dtype, absl::Span<const std::int64_t> shape);

/// Looks at one kernel's tensors before and after it runs, for sessions that validate:
/// - a floating or complex output holds no NaN unless an input or a number among the arguments is one, and no infinity
///   unless one of them is an infinity or a NaN: what is found is where it began;
/// - an input that the schema does not let the kernel write to keeps its bytes (by a checksum of all its memory);
/// - all inputs keep dtype, shape, strides and place in memory.
class KernelCheck {
 public:
  /// `tensors`: by slot. Errors of the check itself, such as RESOURCE_EXHAUSTED, are after()'s.
  KernelCheck(const KernelAction& action, absl::Span<const at::Tensor> tensors);

  /// OUT_OF_RANGE: a value; INTERNAL: an input was changed. Names the argument or output and the first bad index.
  absl::Status after(absl::Span<const at::Tensor> tensors, absl::Span<const at::Tensor> results);
  /// Inputs that are not what they were, though the kernel was not to write to them.
  const std::vector<std::uint32_t>& changed() const { return changed_; }

 private:
  struct Input {
    std::uint32_t slot;
    bool written;
    bool empty;
    std::string looks;  // dtype, shape, strides, place
    std::size_t checksum = 0;
  };
  absl::Status checkInputs(absl::Span<const at::Tensor> tensors);
  absl::Status checkOutput(std::size_t index, const at::Tensor& tensor) const;

  const KernelAction& action_;
  std::vector<Input> inputs_;
  bool mayBeNan_ = false;
  bool mayBeInfinite_ = false;
  std::vector<std::uint32_t> changed_;
  absl::Status status_;
};

}  // namespace dtorch
