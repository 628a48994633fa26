#pragma once
#include <chrono>
#include <deque>
#include <optional>

namespace dtorch {

struct RestartOptions {
  std::chrono::milliseconds delay{500};            // before the first restart; each further one waits twice as long
  std::chrono::milliseconds longestDelay{30'000};  // but not longer
  int limit = 5;                                   // so many restarts within `window`; 0: none at all
  std::chrono::milliseconds window{600'000};
};

/// When the lost worker of one rank is started again. A worker that is lost again and again is given up.
///
/// Thread: its owner's.
class RestartPolicy {
 public:
  using Clock = std::chrono::steady_clock;

  explicit RestartPolicy(const RestartOptions& options) : options_(options) {}
  /// A worker was lost at `now`: how long to wait before the next one is started. nullopt: there were as many restarts
  /// as the options allow, none follows.
  std::optional<std::chrono::milliseconds> lost(Clock::time_point now);
  /// Restarts within the window, the one that lost() has allowed included.
  int recent() const { return static_cast<int>(restarts_.size()); }

 private:
  const RestartOptions options_;
  std::deque<Clock::time_point> restarts_;  // when they were allowed
};

}  // namespace dtorch
