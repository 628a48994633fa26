#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include "client/cpp/tensor.h"

namespace dtorch {

/// A PyTorch tensor of the device `dtorch`: metadata here, the value on the workers, where `remote()` names it. It has
/// no storage; tensors that share memory share it on the workers.
class RemoteTensorImpl final : public c10::TensorImpl {
 public:
  /// `offset`, of a view: how many elements it begins behind its tensor, as autograd has to know.
  RemoteTensorImpl(Tensor remote, c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                   std::int64_t offset);

  const Tensor& remote() const { return remote_; }
  /// After an operator that writes to it: what the operator has returned for it.
  void replace(Tensor remote, c10::IntArrayRef sizes, c10::IntArrayRef strides, std::int64_t offset);

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version,
                                                         bool allowMetadataChange) const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version,
                                                         bool allowMetadataChange) const override;
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& source) override;

 private:
  c10::intrusive_ptr<RemoteTensorImpl> copy() const;
  Tensor remote_;
};

bool isRemote(const at::Tensor& tensor);
/// The tensor must be remote.
RemoteTensorImpl& remoteImpl(const at::Tensor& tensor);
at::Tensor makeRemote(Tensor remote, c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                      std::int64_t offset = 0);
/// Of row-major order.
at::Tensor makeRemote(Tensor remote, c10::ScalarType dtype, c10::IntArrayRef sizes);

}  // namespace dtorch
