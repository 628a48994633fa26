#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/value.h"
#include "dispatch/call_arguments.h"
#include "dispatch/memory_order.h"

namespace dtorch {

/// Finds an operator of the dispatcher by schema name: "aten::add.Tensor", "aten::mm".
/// NOT_FOUND lists the overloads of the same name when there are any.
absl::StatusOr<c10::OperatorHandle> findOperator(const std::string& name);

/// One operator with all its arguments but the tensors bound, ready to be run many times.
///
/// Thread: run() may be called from several threads at once.
class PreparedCall {
 public:
  /// `arguments` are complete, in schema order (see bindArguments in dispatch/binding.h). Device arguments become
  /// `device`. INVALID_ARGUMENT names the argument that does not fit the schema.
  static absl::StatusOr<PreparedCall> create(c10::OperatorHandle op, const std::vector<Value>& arguments,
                                             at::Device device);

  /// Runs the operator on `tensors`, to which the arguments' TensorArg indices refer, and appends its outputs (tensor
  /// lists flattened, numbers as tensors without dimensions, an undefined one as bool[0]) to `outputs`. Whatever
  /// LibTorch throws becomes a Status with its first line: INVALID_ARGUMENT, UNIMPLEMENTED (no kernel),
  /// RESOURCE_EXHAUSTED (out of memory), INTERNAL. Shapes and indices that a kernel would take on trust are checked
  /// before it runs (dispatch/shape_check.h, index_check.h); tensors that do not lie as it needs them are copied, or
  /// refused where it writes to them (memory_order.h). What operators of the "empty" family return is zero: the
  /// same on every rank, and nothing that was in the memory before.
  absl::Status run(absl::Span<const at::Tensor> tensors, std::vector<at::Tensor>* outputs) const;

  const c10::OperatorHandle& op() const { return op_; }
  /// What the schema calls the argument that is, or holds, the tensor `index`: "self", "tensors[2]".
  std::string argumentOf(std::uint32_t index) const;
  /// The arguments but the tensors, which are None.
  const torch::jit::Stack& constants() const { return constants_; }

 private:
  // An argument that is filled in at each run.
  struct Hole {
    std::size_t argument;
    TensorListArg list;  // when isList
    std::uint32_t index;
    bool isList;
    bool optionalElements;
  };
  explicit PreparedCall(c10::OperatorHandle op);
  /// `tensor` as the kernel needs it to lie. INVALID_ARGUMENT: it is written to, and lies otherwise.
  absl::StatusOr<at::Tensor> inOrder(const at::Tensor& tensor, std::size_t argument) const;
  c10::OperatorHandle op_;
  ArgumentCheck shapeCheck_;     // null: none is needed
  ArgumentCheck indexCheck_;     // likewise
  MemoryOrder memoryOrder_;      // that the kernel takes on trust
  bool uninitialized_;           // it leaves its outputs' memory as it was
  torch::jit::Stack constants_;  // one entry an argument; holes are None
  std::vector<Hole> holes_;
};

/// "aten::add.Tensor".
std::string nameOf(const c10::OperatorName& op);

/// `error` as thrown by LibTorch, as a Status.
absl::Status fromException(const std::exception& error);

}  // namespace dtorch
