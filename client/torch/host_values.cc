#include "client/torch/host_values.h"

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>

#include "client/torch/remote_tensor.h"
#include "dispatch/dtype.h"

namespace dtorch {

Tensor putHost(const at::Tensor& tensor, const Destination& destination) {
  const at::Tensor plain = tensor.detach().resolve_conj().resolve_neg();
  const absl::StatusOr<DType> dtype = fromTorch(plain.scalar_type());
  if (!dtype.ok()) raise(dtype.status());
  const std::shared_ptr<Session> session = currentSession();
  const bool isDense = plain.is_contiguous();
  std::size_t bytes = static_cast<std::size_t>(plain.numel()) * plain.element_size();
  if (!isDense && plain.numel() > 0) {
    std::int64_t last = 0;
    for (std::int64_t i = 0; i < plain.dim(); ++i) last += (plain.size(i) - 1) * plain.stride(i);
    bytes = static_cast<std::size_t>(last + 1) * plain.element_size();
  }
  const HostView view = HostView::raw(plain.const_data_ptr(), bytes, *dtype, plain.sizes().vec(),
                                      isDense ? std::vector<std::int64_t>() : plain.strides().vec());
  return session->put(view, destination.mesh ? destination.mesh : session->mesh(), destination.placements);
}

at::Tensor toHost(const HostTensor& value) {
  // The deleter keeps the value.
  return at::from_blob(
      const_cast<std::byte*>(value.bytes().data()), value.shape(), [value](void*) {},
      at::TensorOptions().dtype(toTorch(value.dtype())));
}

at::Tensor getHost(const at::Tensor& remote) {
  const absl::StatusOr<HostTensor> value = remoteImpl(remote).remote().get().get();
  if (!value.ok()) raise(value.status());
  at::Tensor host = toHost(*value);
  if (remote.is_contiguous() || remote.numel() == 0) return host;
  if (!remote.is_non_overlapping_and_dense()) return host;
  return at::empty_strided(remote.sizes(), remote.strides(), host.options()).copy_(host);
}

}  // namespace dtorch
