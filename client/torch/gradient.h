#pragma once
#include "client/torch/remote_tensor.h"

namespace dtorch {

/// A tensor that requires a gradient is read, or has got a hook. Of a leaf, the gradient is brought to where the leaf
/// lies before its hooks and optimizers see it: once, however often the leaf is used.
void placeGradientOf(RemoteTensorImpl& tensor);

}  // namespace dtorch
