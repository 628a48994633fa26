#pragma once
#include <atomic>
#include <cstdint>

namespace dtorch {

/// Lets one thread sleep until another one says that something has changed: a brief spin, then a futex.
///
/// Thread: one sleeper; any thread rings. What the condition reads must be stored, before ring(), and loaded with
/// sequential consistency, so that no ring is lost.
class Doorbell {
 public:
  void ring() {
    if (asleep_.load() == 0) return;
    asleep_.store(0);
    asleep_.notify_one();
  }

  template <typename Condition>
  void waitUntil(Condition condition) {
    for (int spin = 0; spin < kSpins; ++spin) {
      if (condition()) return;
      pause();
    }
    for (;;) {
      asleep_.store(1);
      if (condition()) break;
      asleep_.wait(1);
    }
    asleep_.store(0);
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
