#include "worker/host_tensor.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/placement/convert.h"
#include "core/shard.h"
#include "dispatch/dtype.h"
#include "dispatch/prepared_call.h"
#include "shm/bulk_copy.h"

namespace dtorch {
namespace {

absl::Status checkBytes(std::int64_t needed, std::size_t given) {
  if (needed <= static_cast<std::int64_t>(given)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("an upload has ", given, " bytes where ", needed, " are needed"));
}

// A view of the host's bytes: nothing is copied.
at::Tensor viewOf(absl::Span<const std::byte> bytes, const std::vector<std::int64_t>& shape, DType dtype) {
  const auto options = at::TensorOptions().dtype(toTorch(dtype));
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return at::empty(shape, options);
  return at::from_blob(const_cast<std::byte*>(bytes.data()), shape, options);
}

at::Tensor rowMajorCopy(const at::Tensor& view) {
  at::Tensor copy = at::empty(view.sizes(), view.options());
  copyOut(view, static_cast<std::byte*>(copy.mutable_data_ptr()));
  return copy;
}

absl::StatusOr<at::Tensor> ownPart(const HostLayout& host, absl::Span<const std::byte> bytes, const DeviceMesh& mesh,
                                   const std::vector<std::int64_t>& coordinate) {
  if (static_cast<std::int64_t>(host.partShapes.size()) != mesh.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("an upload has ", host.partShapes.size(), " parts for ", mesh.size(), " ranks"));
  }
  std::size_t own = 0;
  for (std::size_t m = 0; m < coordinate.size(); ++m) {
    own = own * static_cast<std::size_t>(mesh.shape()[m]) + static_cast<std::size_t>(coordinate[m]);
  }
  const std::vector<std::int64_t> expected = localShape(host.meta.shape, mesh, host.placements, coordinate);
  if (host.partShapes[own] != expected) {
    return absl::InvalidArgumentError(absl::StrCat("part ", own, " of an upload has shape [",
                                                   absl::StrJoin(host.partShapes[own], ", "),
                                                   "] where its placement says [", absl::StrJoin(expected, ", "), "]"));
  }
  std::int64_t offset = 0;
  std::int64_t end = 0;
  for (std::size_t part = 0; part <= own; ++part) {
    const absl::StatusOr<TensorMeta> meta = makeMeta(host.meta.dtype, host.partShapes[part]);
    if (!meta.ok()) return meta.status();
    offset = end;
    if (__builtin_add_overflow(offset, meta->bytes(), &end)) {
      return absl::InvalidArgumentError("the parts of an upload are too large");
    }
  }
  if (absl::Status status = checkBytes(end, bytes.size()); !status.ok()) return status;
  return rowMajorCopy(viewOf(bytes.subspan(static_cast<std::size_t>(offset)), expected, host.meta.dtype));
}

absl::StatusOr<at::Tensor> partOfWhole(const HostLayout& host, absl::Span<const std::byte> bytes,
                                       const DeviceMesh& mesh, const std::vector<std::int64_t>& coordinate) {
  if (absl::Status status = checkBytes(host.meta.bytes(), bytes.size()); !status.ok()) return status;
  at::Tensor view = viewOf(bytes, host.meta.shape, host.meta.dtype);
  for (int d = 0; d < view.dim(); ++d) {
    const ShardRange range = localRange(view.size(d), d, mesh, host.placements, coordinate);
    view = view.narrow(d, range.offset, range.length);
  }
  Placements beforePartial = host.placements;
  for (Placement& placement : beforePartial) {
    if (placement.isPartial()) placement = Placement::replicate();
  }
  if (beforePartial == host.placements) return rowMajorCopy(view);
  // What each rank holds of a Partial value is the conversion's to say; it asks no other rank.
  const auto noGroup = [](const std::vector<Rank>&) -> absl::StatusOr<ThreadGroup*> {
    return absl::InternalError("an upload asked for a collective");
  };
  return convert(view, host.meta.shape, beforePartial, host.placements, {mesh, coordinate, noGroup, {0, "upload"}});
}

}  // namespace

absl::StatusOr<at::Tensor> localPart(const HostLayout& host, absl::Span<const std::byte> bytes, const DeviceMesh& mesh,
                                     const std::vector<std::int64_t>& coordinate) {
  try {
    return host.parts ? ownPart(host, bytes, mesh, coordinate) : partOfWhole(host, bytes, mesh, coordinate);
  } catch (const std::exception& error) {
    return fromException(error);
  }
}

bool isRowMajor(const at::Tensor& tensor) { return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg(); }

void copyOut(const at::Tensor& tensor, std::byte* out) {
  if (tensor.numel() == 0) return;
  if (isRowMajor(tensor)) {
    return bulkCopy(out, static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes());
  }
  at::from_blob(out, tensor.sizes(), tensor.options()).copy_(tensor);
}

}  // namespace dtorch
