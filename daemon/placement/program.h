#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "core/placement.h"
#include "core/tensor_meta.h"
#include "core/value.h"

namespace dtorch {

/// A tensor of a Program: global metadata, the factor of each dimension, and how it is Partial along the mesh
/// dimensions that the program is for.
struct ProgramTensor {
  TensorMeta meta;
  std::vector<int> dims;
  std::vector<ReduceOp> partial;  // none, or one

  /// Its placement where `factor` is sharded; `combined`: the program is for that factor.
  Placement placement(int factor, bool combined) const;
};

/// One step of a Program: a kernel on local tensors or, without a name, the conversion of a tensor to where its result
/// lies.
struct ProgramStep {
  /// An argument that is a number of the local part of a tensor: see LocalRange.
  struct LocalNumber {
    std::size_t argument;  // by position
    std::uint32_t tensor;
    int dim;
    LocalRange::Part part;
  };
  std::string op;
  Arguments arguments;  // TensorArg: a tensor of the program
  std::vector<LocalNumber> localNumbers;
  std::uint32_t results = 1;
};

/// What is run in place of an operator's own kernel where a factor is sharded that the kernel alone cannot deal with.
struct Program {
  std::vector<ProgramTensor> tensors;  // the call's inputs, then the steps' results
  std::vector<ProgramStep> steps;
  std::vector<std::uint32_t> outputs;  // which of them the call returns
};

/// What a program computes in: half precisions in float, as kernels do inside.
DType computeType(DType dtype);

/// Writes down a program. Tensors are named by their numbers.
class ProgramBuilder {
 public:
  /// Of a call with these inputs and their factors.
  ProgramBuilder(absl::Span<const TensorMeta* const> inputs, const std::vector<std::vector<int>>& dims);

  static Value tensor(std::uint32_t number) { return TensorArg{number}; }
  /// A kernel with one result.
  std::uint32_t run(std::string op, std::vector<Value> arguments, ProgramTensor result,
                    std::vector<ProgramStep::LocalNumber> localNumbers = {});
  /// A kernel with several results; the number of the first.
  std::uint32_t runAll(std::string op, std::vector<Value> arguments, std::vector<ProgramTensor> results,
                       std::vector<ProgramStep::LocalNumber> localNumbers = {});
  /// A tensor of the sizes and dtype of `result`, made by aten::empty, aten::ones or the like.
  std::uint32_t factory(std::string op, ProgramTensor result);
  /// A pointwise kernel on `number` and numbers: its result looks like it.
  std::uint32_t map(std::string op, std::uint32_t number, std::vector<Value> others = {});
  /// The same in another dtype.
  std::uint32_t cast(std::uint32_t number, DType dtype);
  /// The value of a Partial tensor, on every rank.
  std::uint32_t reduced(std::uint32_t number);
  /// The whole of a tensor that is split along `dim`, on every rank.
  std::uint32_t gathered(std::uint32_t number, std::size_t dim);
  /// Each rank's part of a tensor that all have, by the factors of its dimensions.
  std::uint32_t placed(std::uint32_t number, std::vector<int> dims);
  /// Softmax along `dim`, or its logarithm, where the dimension may be split; in the dtype of `number`.
  std::uint32_t softmax(std::uint32_t number, int dim, bool log);
  /// Indices into dimension `dim` of tensor `of`, as those of the rank's part of it, and a mask of what lies elsewhere.
  struct LocalIndices {
    std::uint32_t indices;
    std::uint32_t elsewhere;
  };
  LocalIndices localIndices(std::uint32_t indices, std::uint32_t of, int dim);
  const ProgramTensor& operator[](std::uint32_t number) const { return program_.tensors[number]; }
  Program finish(std::vector<std::uint32_t> outputs);

 private:
  Program program_;
};

}  // namespace dtorch
