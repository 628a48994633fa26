#pragma once
#include "absl/status/statusor.h"
#include "comm/exchange/call.h"
#include "comm/exchange/exchange.h"

namespace dtorch {

/// Combines tensors of `dtype` as LibTorch does: NaN wins min and max, bool sum is logical or, float16 and bfloat16
/// accumulate in float32. INVALID_ARGUMENT for what LibTorch cannot reduce: any reduction of float8, min and max of
/// complex numbers, avg of integers and bool, bitwise operations on anything but integers and bool.
absl::StatusOr<ReduceKernel> reduceKernel(DType dtype, Reduction reduction);

}  // namespace dtorch
