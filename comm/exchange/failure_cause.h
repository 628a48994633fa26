#pragma once
#include <cstddef>

namespace dtorch {

/// Payload of a status given to ThreadGroup::fail(): bytes of the caller's own that every rank's status carries, too.
/// At most kMaxFailureCause of them; more are left out.
inline constexpr const char* kFailureCause = "dtorch.FailureCause";
inline constexpr std::size_t kMaxFailureCause = 512;

}  // namespace dtorch
