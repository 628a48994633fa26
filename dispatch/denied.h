#pragma once
#include <string>

#include "absl/status/status.h"

namespace dtorch {

/// OK, or PERMISSION_DENIED saying why no client may call operator `name`: it reads files, or trusts its indices
/// blindly.
absl::Status checkAllowed(const std::string& name);

}  // namespace dtorch
