#pragma once
#include <ATen/core/function_schema.h>

#include <cstddef>

namespace dtorch {

/// Whether the operator may write to its `argument`-th argument: its schema says so, or it is one of those that write
/// without saying.
bool isWritten(const c10::FunctionSchema& schema, std::size_t argument);

}  // namespace dtorch
