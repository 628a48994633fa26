#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "client/cpp/tensor.h"
#include "client/torch/current_session.h"

namespace dtorch {

/// A tensor in this process's memory as one on the workers. Its elements are copied before this returns.
Tensor putHost(const at::Tensor& tensor, const Destination& destination);
/// A tensor of `shape`, of what each rank of the mesh shall hold.
Tensor putParts(const std::vector<at::Tensor>& parts, std::vector<std::int64_t> shape, const Destination& destination);
/// The whole value, in this process's memory, with the tensor's strides. Waits for it; throws its error.
at::Tensor getHost(const at::Tensor& remote);
/// The same for a value that is expected to have the shape and dtype that the worker gave it.
at::Tensor toHost(const HostTensor& value);

}  // namespace dtorch
