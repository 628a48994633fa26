#pragma once
#include "absl/types/span.h"
#include "daemon/placement/rule.h"

namespace dtorch {

/// What a call takes of one processor: the larger of arithmetic and memory traffic (roofline).
struct OperatorCost {
  double flops = 0;
  double bytes = 0;

  /// Of the whole call on one rank. Matrix products and convolutions count two operations a term, the others one an
  /// element of inputs and outputs.
  static OperatorCost of(const RuleCall& call, const Factors& factors);
  double seconds() const;
};

/// How long a rank waits for `bytes` from others, in `collectives` exchanges.
double transferSeconds(double bytes, int collectives);

}  // namespace dtorch
