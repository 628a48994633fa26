#pragma once
#include "absl/strings/string_view.h"
#include "dispatch/call_arguments.h"

namespace dtorch {

/// Checks what a CPU kernel of LibTorch's takes on trust: the values of pivots, class numbers, offsets and indices into
/// another tensor's memory, and dividends that have no quotient. With wrong ones it reads and writes whatever they
/// point to, of other sessions, too, or ends its process. The check of the operator `name` (without overload) refuses
/// them, and names argument and value; null: its kernel checks for itself, or uses no values as indices.
ArgumentCheck indexCheckOf(absl::string_view name);

}  // namespace dtorch
