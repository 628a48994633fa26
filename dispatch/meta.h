#pragma once
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/tensor_meta.h"
#include "core/value.h"
#include "dispatch/prepared_call.h"

namespace dtorch {

/// What an operator returns.
struct OutputMeta {
  TensorMeta meta;
  int alias = -1;  // the input whose memory it shares; -1: memory of its own

  friend bool operator==(const OutputMeta&, const OutputMeta&) = default;
};

/// Metadata of what `op` returns for inputs of the given metadata, by its Meta kernel; no data is touched. Operators
/// without one: pointwise ones broadcast, and their dtype is that of a run on empty tensors; a few
/// (flip, max, ...) follow the table in meta.cc.
/// UNIMPLEMENTED: none of the three. INVALID_ARGUMENT: LibTorch refuses the inputs.
absl::StatusOr<std::vector<OutputMeta>> inferMeta(const c10::OperatorHandle& op, const std::vector<Value>& arguments,
                                                  absl::Span<const TensorMeta* const> inputs);

}  // namespace dtorch
