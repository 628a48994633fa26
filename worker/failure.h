#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "core/ids.h"
#include "dtorch/v1/types.pb.h"

namespace dtorch {

/// Why an operand has no value: the first error on its way.
struct Failure {
  /// Of `what`: "<what> failed on rank 1: <why>".
  Failure(const std::string& what, const absl::Status& why, Rank failedRank);

  /// Of a status that says all of it already.
  Failure(absl::Status why, Rank failedRank, std::string name);

  absl::Status status;
  Rank rank = 0;
  std::string operatorName;  // empty: no operator failed
  OperatorNumber root = 0;   // its number
  std::uint32_t site = 0;    // the call site that the daemon gave for it

  void toWire(v1::Status* out) const;
  /// The status with all else as its kFailureCause, for the peers that wait for this rank.
  absl::Status forPeers() const;
  /// What a peer gave out by forPeers(); null: `status` has no such cause.
  static std::shared_ptr<const Failure> ofPeer(const absl::Status& status);
};

/// Shared by all operands that the failure reaches.
using FailurePtr = std::shared_ptr<const Failure>;

}  // namespace dtorch
