#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/device_mesh.h"
#include "core/placement.h"
#include "core/tensor_meta.h"

namespace dtorch {

/// What an upload brings: row-major host bytes, either of the whole tensor or of the parts of all ranks in mesh order.
struct HostLayout {
  TensorMeta meta;  // global
  Placements placements;
  bool parts = false;
  std::vector<std::vector<std::int64_t>> partShapes;  // one a rank of the mesh, if `parts`
};

/// Copies the part that lies at `coordinate` out of `bytes`, in one pass. A Partial placement of a whole tensor gives
/// it to the first coordinate of that mesh dimension and the neutral element to the others; to all, for the average.
/// INVALID_ARGUMENT: bytes, parts or shapes do not fit together.
absl::StatusOr<at::Tensor> localPart(const HostLayout& host, absl::Span<const std::byte> bytes, const DeviceMesh& mesh,
                                     const std::vector<std::int64_t>& coordinate);

/// Whether the bytes of `tensor` are its value, row-major.
bool isRowMajor(const at::Tensor& tensor);
/// Copies `tensor`, row-major, to `out`, which has room for its bytes.
void copyOut(const at::Tensor& tensor, std::byte* out);

}  // namespace dtorch
