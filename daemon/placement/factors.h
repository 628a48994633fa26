#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "core/placement.h"
#include "daemon/placement/program.h"

namespace dtorch {

struct RuleCall;

/// How an operator's tensor dimensions hang together, for inputs of known shape: what a placement rule says.
///
/// Each dimension of each tensor belongs to a *factor* or to none (kWhole: it must not be sharded). A factor that every
/// output has passes a Shard through; an output that lacks a reduced factor is Partial where the factor is sharded. All
/// signatures of the operator follow (signature.h); the terms are those of einsum and of Shardy's sharding rules.
struct Factors {
  static constexpr int kWhole = -1;

  /// The factor of each dimension of each tensor input, in the order of RuleCall::inputs; likewise of each output.
  std::vector<std::vector<int>> inputs;
  std::vector<std::vector<int>> outputs;
  int count = 0;
  std::vector<int> all() const;

  /// How outputs without the factor become Partial; a factor that some output lacks and that is not here, nor combined,
  /// must stay whole.
  struct Reduced {
    int factor;
    ReduceOp by;
  };
  std::vector<Reduced> reduced;
  /// Factors whose sharding takes a program; it is made for the number of parts that they are split into.
  struct Combined {
    std::vector<int> factors;
    std::function<absl::StatusOr<Program>(const RuleCall& call, std::int64_t parts)> program;
    /// How outputs without the factor are Partial; none: the program leaves them Replicate.
    std::vector<ReduceOp> partial;
  };
  std::vector<Combined> combined;
  /// The programs write to what the operator writes to; others make new tensors, and are not for such an operator.
  bool programWrites = false;
  /// Outputs without elements: Replicate, unless a dimension of theirs is sharded.
  std::vector<int> nothing;
  /// Factors that are sharded only if every rank has a part: a kernel cannot reduce nothing.
  std::vector<int> neverEmpty;
  /// A dimension of `inner` indices for each index of its factor: it is split only where that is a multiple of `inner`.
  struct Block {
    bool output;
    int tensor;
    int dim;
    std::int64_t inner;
  };
  std::vector<Block> blocks;

  /// Sets of inputs in which the operator is linear together: all of a set Partial(sum) or Partial(avg), the others
  /// Replicate, gives outputs that are Partial in the same way.
  std::vector<std::vector<int>> linear;
  /// Sets of inputs whose elements the operator only moves: any Partial passes through.
  std::vector<std::vector<int>> moved;
  /// Inputs of which only the metadata matters: a Partial one will do as it is.
  std::vector<int> unread;
  /// Inputs that are added to the result: where a factor is reduced they must be Partial too, or they would be added
  /// once a rank.
  std::vector<int> addends;
  /// Arguments (by position in the schema) that hold the sizes of an output, or one of them, to be replaced by local
  /// ones.
  struct SizeArgument {
    int argument;
    int output;
    int dim;  // -1: all
  };
  std::vector<SizeArgument> sizes;

  /// A new factor's number.
  int add() { return count++; }
  /// A new factor for each of `dims` dimensions.
  std::vector<int> addAll(std::size_t dims);
  /// Its dimensions are not to be sharded.
  void keepWhole(int factor);
};

}  // namespace dtorch
