#pragma once
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/tensor_meta.h"
#include "core/value.h"
#include "dispatch/prepared_call.h"

namespace dtorch {

/// Metadata of what `op` returns for inputs of the given metadata, by its Meta kernel; no data is touched. Operators
/// without one that return a tensor like their first input (relu, flip, ...: the table in meta.cc) follow that.
/// UNIMPLEMENTED: neither a Meta kernel nor a row of the table. INVALID_ARGUMENT: LibTorch refuses the inputs.
absl::StatusOr<std::vector<TensorMeta>> inferMeta(const c10::OperatorHandle& op, const std::vector<Value>& arguments,
                                                  absl::Span<const TensorMeta* const> inputs);

}  // namespace dtorch
