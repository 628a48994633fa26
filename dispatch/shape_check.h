#pragma once
#include "absl/strings/string_view.h"
#include "dispatch/call_arguments.h"

namespace dtorch {

/// Checks what a CPU kernel of LibTorch's takes on trust: that gradients and statistics have the shapes that go with
/// the other arguments. Where they have not it reads and writes past their ends. Needs no values: Meta kernels, which
/// do not look either, get the same check. The check of the operator `name` (without overload) refuses them, and names
/// the argument; null: its kernel checks for itself.
ArgumentCheck shapeCheckOf(absl::string_view name);

}  // namespace dtorch
