#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <memory>
#include <string>
#include <vector>

#include "client/torch/operator_schema.h"

namespace dtorch {

/// What a call returns, and what becomes of the tensors that it writes to, without their values.
struct Outcome {
  struct Result {
    bool defined = true;
    c10::ScalarType dtype = c10::ScalarType::Float;
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;
    std::int64_t offset = 0;  // of a view, from where its tensor begins
  };
  std::vector<Result> results;         // lists' elements one by one
  std::vector<std::size_t> listSizes;  // of the returns that are lists, in order
};

/// What is known of a call's outcome before it is made.
struct Expectation {
  /// Null: not even how many tensors there will be, if it returns lists.
  std::shared_ptr<const Outcome> outcome;
  /// Else the daemon has to say what becomes of it; then remember() it.
  bool isCertain = false;
  std::string signature;  // of the call; empty: it has none
};

/// Calls of a signature that was remembered are certain, and so are those of operators that only do what broadcasting
/// or views do. Of others PyTorch's Meta kernels tell no more than how many tensors there will be: those of Python
/// describe other devices, with other dtypes and strides. Throws what a Meta kernel throws when it refuses the
/// arguments. `arguments`: the call's, as they lie on the stack.
Expectation expect(const c10::OperatorHandle& op, const OperatorSchema& schema, c10::ArrayRef<c10::IValue> arguments);
void remember(const std::string& signature, std::shared_ptr<const Outcome> outcome);

}  // namespace dtorch
