#pragma once
#include <string>
#include <vector>

#include "core/placement.h"
#include "daemon/placement/factors.h"

namespace dtorch {

/// One allowed combination of placements along one mesh dimension.
struct Signature {
  std::vector<Placement> inputs;
  std::vector<Placement> outputs;
  /// "S(0), R -> S(0)".
  std::string toString() const;
  friend bool operator==(const Signature&, const Signature&) = default;
};

/// All signatures that follow from `factors`; the first is all Replicate.
std::vector<Signature> signaturesOf(const Factors& factors);

}  // namespace dtorch
