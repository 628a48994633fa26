#pragma once
#include <optional>
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

/// What `tensor` looks like. UNIMPLEMENTED: it is undefined, not strided, or of a dtype that does not cross the wire.
absl::StatusOr<TensorMeta> tensorMeta(const at::Tensor& tensor);

/// What an operator returns; nullopt: that depends on its inputs' values, or only a run tells.
using OutputMetas = std::optional<std::vector<OutputMeta>>;

/// Metadata of what `op` returns for inputs of the given metadata, by its Meta kernel; no data is touched. Operators
/// without one: pointwise ones broadcast, and their dtype is that of a run on empty tensors; the others are run here on
/// zeros, if these are few; some follow the table in meta.cc. To be called where a kernel may do no harm (see
/// MetadataProcess). INVALID_ARGUMENT: LibTorch refuses the inputs. UNIMPLEMENTED: its result is no strided tensor.
absl::StatusOr<OutputMetas> inferMeta(const c10::OperatorHandle& op, const std::vector<Value>& arguments,
                                      absl::Span<const TensorMeta* const> inputs);

}  // namespace dtorch
