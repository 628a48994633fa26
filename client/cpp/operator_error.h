#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "core/ids.h"

namespace dtorch {

/// What a failed value's status carries besides its message (whose text holds all of this too).
struct OperatorError {
  std::string operatorName;  // the first that failed: "aten::mm"
  std::optional<Rank> rank;  // where it failed; none: on the daemon
  std::string site;          // the client's call site, "file:line"
};

/// What a caller can do about a failure: docs/operations.md.
enum class FailureKind : std::uint8_t {
  kOperatorFailed,  // the call was refused, or its kernel failed
  kWorkerLost,      // ABORTED: a worker ended while the operator was in flight
  kTensorLost,      // DATA_LOSS: the tensor had a part on a worker that was lost since
  kDeadline,        // DEADLINE_EXCEEDED
  kCancelled,       // CANCELLED
  kOverQuota,       // RESOURCE_EXHAUSTED
  kUnavailable      // UNAVAILABLE: the daemon is not there, is ending, or has ended the session
};
/// Of a status that is not OK.
FailureKind failureKind(const absl::Status& status);

/// nullopt when no operator is to blame: a lost connection, a deadline.
std::optional<OperatorError> operatorError(const absl::Status& status);

}  // namespace dtorch
