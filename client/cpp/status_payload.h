#pragma once
#include "absl/status/status.h"
#include "dtorch/v1/types.pb.h"

namespace dtorch {

/// The status that a user sees for an error from the wire: the text says which operator failed, where it was called and
/// on which rank, unless the message says so already; operatorError() reads the same from the payload.
absl::Status statusFromError(const v1::Status& error);

}  // namespace dtorch
