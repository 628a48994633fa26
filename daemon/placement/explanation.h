#pragma once
#include <vector>

#include "absl/types/span.h"
#include "daemon/graph/tensor_layout.h"
#include "daemon/placement/placed_operator.h"
#include "dtorch/v1/client.pb.h"

namespace dtorch {

void toWire(const Redistribution& redistribution, v1::PlannedRedistribution* wire);

/// What a rule makes of a call: its rows, the candidates with their costs, and which of them explicit mode takes.
v1::Explanation explain(const OperatorRule& rule, std::size_t inputs, std::size_t outputs);
/// Of a call that runs only where all its inputs are Replicate: `why`.
v1::Explanation explainReplicated(absl::Span<const TensorLayout* const> inputs, std::size_t outputs,
                                  const PlacedMesh* mesh, const absl::Status& why);

}  // namespace dtorch
