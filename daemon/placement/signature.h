#pragma once
#include <string>
#include <vector>

#include "core/placement.h"
#include "daemon/placement/factors.h"

namespace dtorch {

/// One allowed combination of placements along one mesh dimension: a row of a rule.
struct Signature {
  std::vector<Placement> inputs;
  std::vector<Placement> outputs;
  int factor = -1;  // that is sharded; -1: none is

  /// "S(0), R -> S(0)".
  std::string toString() const;
  bool samePlacements(const Signature& other) const { return inputs == other.inputs && outputs == other.outputs; }
};

/// All signatures that follow from `factors`; the first is all Replicate.
std::vector<Signature> signaturesOf(const Factors& factors);

}  // namespace dtorch
