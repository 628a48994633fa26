#pragma once
#include <ATen/core/function_schema.h>

#include <vector>

#include "absl/status/statusor.h"
#include "core/value.h"

namespace dtorch {

/// `arguments` as one value for each parameter of `schema`, in its order, with the schema's defaults in the gaps. What
/// is given for a list of ints is one: a single int, and a list of any values that are ints, too. INVALID_ARGUMENT: too
/// many, an unknown name, given twice, or a missing one; the message shows the schema.
absl::StatusOr<std::vector<Value>> bindArguments(const c10::FunctionSchema& schema, const Arguments& arguments);

/// A constant `value` as the IValue that parameter `argument` takes, coerced as PyTorch's own argument parser does: an
/// int where a float is wanted, a number where a tensor is wanted, one int where int[2] is wanted. Device arguments
/// become `device`. INVALID_ARGUMENT names the parameter, its type and the value. Values that hold tensors do not
/// belong here.
absl::StatusOr<c10::IValue> toIValue(const c10::Argument& argument, const Value& value, c10::Device device);

}  // namespace dtorch
