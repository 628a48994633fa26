#pragma once
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/host_tensor.h"
#include "core/dtype.h"

namespace dtorch {

// NumPy's file format for one array, https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html.

/// The dtype that a tensor of `dtype` has in a file: NumPy has no bfloat16 and no float8 (float32 there), no complex32
/// (complex64). Every number stays what it is.
DType npyDType(DType dtype);

/// Writes `value` to `path`, whose folder exists; a file there is replaced. INVALID_ARGUMENT: checkView's; UNAVAILABLE:
/// it could not be written.
absl::Status writeNpy(const std::string& path, const HostView& value);
/// NOT_FOUND: no such file; INVALID_ARGUMENT: it is none of an array of numbers of this machine's byte order.
absl::StatusOr<HostTensor> readNpy(const std::string& path);

}  // namespace dtorch
