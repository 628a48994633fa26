#pragma once
#include <c10/core/ScalarType.h>

#include "absl/status/statusor.h"
#include "core/dtype.h"

namespace dtorch {

c10::ScalarType toTorch(DType dtype);
/// UNIMPLEMENTED for LibTorch types that do not cross the wire (quantized, bits).
absl::StatusOr<DType> fromTorch(c10::ScalarType type);

}  // namespace dtorch
