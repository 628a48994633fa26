#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>

#include "shm/futex.h"

namespace dtorch {

/// Lets one thread sleep until another one says that something has changed: a brief spin, then a futex.
///
/// Thread: one sleeper; any thread rings. What the condition reads must be stored, before ring(), and loaded with
/// sequential consistency, so that no ring is lost.
class Doorbell {
 public:
  static constexpr std::chrono::nanoseconds kForever = std::chrono::nanoseconds::max();

  void ring() {
    if (asleep_.load() == 0) return;
    asleep_.store(0);
    futexWakeAll(asleep_);
  }

  bool asleep() const { return asleep_.load() != 0; }

  /// Sleeps until `condition` holds. False: `timeout` came first.
  template <typename Condition>
  bool waitUntil(Condition condition, std::chrono::nanoseconds timeout = kForever) {
    for (int spin = 0; spin < kSpins; ++spin) {
      if (condition()) return true;
      pause();
    }
    using Clock = std::chrono::steady_clock;
    const bool forever = timeout == kForever;
    const Clock::time_point deadline = forever ? Clock::time_point::max() : Clock::now() + timeout;
    std::chrono::nanoseconds left = forever ? std::chrono::hours(1) : timeout;
    bool holds = false;
    for (;;) {
      asleep_.store(1);
      holds = condition();
      if (holds || left.count() <= 0) break;
      futexWait(asleep_, 1, left);
      if (!forever) left = deadline - Clock::now();
    }
    asleep_.store(0);
    return holds;
  }

 private:
  // About 2 us: what comes right after the last task finds the stream awake; an idle stream costs no processor time.
  static constexpr int kSpins = 50;
  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  std::atomic<std::uint32_t> asleep_{0};
};

}  // namespace dtorch
