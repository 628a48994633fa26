#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace dtorch {

/// The boxed kernel of the device dtorch: sends the call to the session, and puts tensors on the stack whose metadata
/// are known here. Waits for the workers only where the metadata of the result, or a number that is returned, depends
/// on values.
void callRemotely(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace dtorch
