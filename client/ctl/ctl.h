#pragma once
#include <ostream>

namespace dtorch {

// Exit codes of dtorchctl.
inline constexpr int kExitHealthy = 0;
inline constexpr int kExitDegraded = 1;     // also: starting, stopping, or not gone in time
inline constexpr int kExitUnreachable = 2;  // also: refused, or a wrong command line

/// dtorchctl, with its two outputs given.
int runCtl(int argc, const char* const* argv, std::ostream& out, std::ostream& err);

}  // namespace dtorch
