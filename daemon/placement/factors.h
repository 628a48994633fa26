#pragma once
#include <vector>

#include "core/placement.h"

namespace dtorch {

/// How an operator's tensor dimensions hang together, for inputs of known shape: what a placement rule says.
///
/// Each dimension of each tensor belongs to a *factor* or to none (kWhole: it must not be sharded). A factor that every
/// output has passes a Shard through; one that no output has is reduced: sharded inputs give Partial outputs. All
/// signatures of the operator follow (signature.h); the terms are those of einsum and of Shardy's sharding rules.
struct Factors {
  static constexpr int kWhole = -1;

  /// The factor of each dimension of each tensor input, in the order of the call's inputs; likewise of each output.
  std::vector<std::vector<int>> inputs;
  std::vector<std::vector<int>> outputs;
  int count = 0;
  /// How factors that no output has are reduced; without a value such a factor must stay whole.
  std::vector<ReduceOp> reducedBy;  // empty, or one
  /// Sets of inputs in which the operator is linear together: all of a set Partial(sum) or Partial(avg), the others
  /// Replicate, gives outputs that are Partial in the same way.
  std::vector<std::vector<int>> linear;
  /// Inputs that are added to the result: where a factor is reduced they must be Partial too, or they would be added
  /// once a rank.
  std::vector<int> addends;
  /// The operator only moves elements: any Partial passes through from input 0.
  bool movesOnly = false;
  /// Arguments (by position in the schema) that hold output 0's sizes, to be replaced by the local ones.
  std::vector<int> sizeArguments;

  /// A new factor's number.
  int add() { return count++; }
};

}  // namespace dtorch
