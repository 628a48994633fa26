#include "client/torch/host_values.h"

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>

#include <utility>

#include "client/torch/call_site.h"
#include "client/torch/remote_tensor.h"
#include "dispatch/dtype.h"

namespace dtorch {

namespace {

at::Tensor plainOf(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.device().is_cpu(), "a tensor on the device ", tensor.device(), " goes to the CPU first");
  return tensor.detach().resolve_conj().resolve_neg();
}

/// `plain` must outlive it.
HostView viewOf(const at::Tensor& plain) {
  const absl::StatusOr<DType> dtype = fromTorch(plain.scalar_type());
  if (!dtype.ok()) raise(dtype.status());
  const bool isDense = plain.is_contiguous();
  std::size_t bytes = static_cast<std::size_t>(plain.numel()) * plain.element_size();
  if (!isDense && plain.numel() > 0) {
    std::int64_t last = 0;
    for (std::int64_t i = 0; i < plain.dim(); ++i) last += (plain.size(i) - 1) * plain.stride(i);
    bytes = static_cast<std::size_t>(last + 1) * plain.element_size();
  }
  return HostView::raw(plain.const_data_ptr(), bytes, *dtype, plain.sizes().vec(),
                       isDense ? std::vector<std::int64_t>() : plain.strides().vec());
}

}  // namespace

Tensor putHost(const at::Tensor& tensor, const Destination& destination) {
  const at::Tensor plain = plainOf(tensor);
  const std::shared_ptr<Session> session = currentSession();
  return session->put(viewOf(plain), destination.mesh ? destination.mesh : session->mesh(), destination.placements,
                      {.timeout = currentTimeLimit()}, callSite());
}

Tensor putParts(const std::vector<at::Tensor>& parts, std::vector<std::int64_t> shape, const Destination& destination) {
  std::vector<at::Tensor> plain;
  for (const at::Tensor& part : parts) plain.push_back(plainOf(part));
  std::vector<HostView> views;
  for (const at::Tensor& part : plain) views.push_back(viewOf(part));
  return currentSession()->putShards(views, std::move(shape), destination.mesh, destination.placements,
                                     {.timeout = currentTimeLimit()}, callSite());
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
