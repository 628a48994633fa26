#include "client/torch/remote_tensor.h"

#include <c10/core/Contiguity.h>

#include <utility>
#include <vector>

namespace dtorch {

RemoteTensorImpl::RemoteTensorImpl(Tensor remote, c10::ScalarType dtype, c10::IntArrayRef sizes,
                                   c10::IntArrayRef strides, std::int64_t offset)
    : TensorImpl(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::scalarTypeToTypeMeta(dtype),
                 c10::Device(c10::kPrivateUse1, 0)),
      remote_(std::move(remote)) {
  set_storage_access_should_throw();
  set_sizes_and_strides(sizes, strides, offset);
}

void RemoteTensorImpl::replace(Tensor remote, c10::IntArrayRef sizes, c10::IntArrayRef strides, std::int64_t offset) {
  remote_ = std::move(remote);
  if (this->sizes() != sizes || this->strides() != strides || storage_offset() != offset) {
    set_sizes_and_strides(sizes, strides, offset);
  }
}

c10::intrusive_ptr<RemoteTensorImpl> RemoteTensorImpl::copy() const {
  return c10::make_intrusive<RemoteTensorImpl>(remote_, c10::typeMetaToScalarType(dtype()), sizes(), strides(),
                                               storage_offset());
}

c10::intrusive_ptr<c10::TensorImpl> RemoteTensorImpl::shallow_copy_and_detach(const c10::VariableVersion& version,
                                                                              bool allowMetadataChange) const {
  auto result = copy();
  copy_tensor_metadata(this, result.get(), version, allowMetadataChange);
  return result;
}

c10::intrusive_ptr<c10::TensorImpl> RemoteTensorImpl::shallow_copy_and_detach(c10::VariableVersion&& version,
                                                                              bool allowMetadataChange) const {
  auto result = copy();
  copy_tensor_metadata(this, result.get(), std::move(version), allowMetadataChange);
  return result;
}

void RemoteTensorImpl::shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& source) {
  const auto* other = dynamic_cast<const RemoteTensorImpl*>(source.get());
  TORCH_CHECK(other != nullptr, "the data of a tensor on the device dtorch can only be such a tensor's");
  copy_tensor_metadata(other, this, version_counter(), allow_tensor_metadata_change());
  remote_ = other->remote_;
}

bool isRemote(const at::Tensor& tensor) { return tensor.defined() && tensor.device().is_privateuseone(); }

RemoteTensorImpl& remoteImpl(const at::Tensor& tensor) {
  auto* impl = dynamic_cast<RemoteTensorImpl*>(tensor.unsafeGetTensorImpl());
  TORCH_CHECK(impl != nullptr, "a tensor on the device dtorch without a value");
  return *impl;
}

at::Tensor makeRemote(Tensor remote, c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                      std::int64_t offset) {
  return at::Tensor(c10::make_intrusive<RemoteTensorImpl>(std::move(remote), dtype, sizes, strides, offset));
}

at::Tensor makeRemote(Tensor remote, c10::ScalarType dtype, c10::IntArrayRef sizes) {
  std::vector<std::int64_t> strides(sizes.size(), 1);
  for (std::size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<std::int64_t>(sizes[i], 1);
  return makeRemote(std::move(remote), dtype, sizes, strides);
}

}  // namespace dtorch
