#pragma once
#include <signal.h>

namespace dtorch {

/// The signals that ask the daemon to stop. They are blocked from its first instruction on, and read from a descriptor.
inline sigset_t stopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

}  // namespace dtorch
