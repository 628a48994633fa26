#pragma once
#include <ATen/core/function_schema.h>

#include <cstddef>

#include "absl/types/span.h"
#include "core/value.h"

namespace dtorch {

/// Whether the operator may write to its `argument`-th argument: its schema says so, or it is one of those that write
/// without saying.
bool isWritten(const c10::FunctionSchema& schema, std::size_t argument);

/// The same of a call with `arguments`, one for each of the schema: some are written only where another one asks for it
/// (the gradients that a fused optimizer steps by, where there is a grad_scale).
bool isWritten(const c10::FunctionSchema& schema, std::size_t argument, absl::Span<const Value> arguments);

}  // namespace dtorch
