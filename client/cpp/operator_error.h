#pragma once
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

/// nullopt when no operator is to blame: a lost connection, a deadline.
std::optional<OperatorError> operatorError(const absl::Status& status);

}  // namespace dtorch
