#include "daemon/supervisor/restart_policy.h"

#include <algorithm>

namespace dtorch {

std::optional<std::chrono::milliseconds> RestartPolicy::lost(Clock::time_point now) {
  while (!restarts_.empty() && now - restarts_.front() > options_.window) restarts_.pop_front();
  if (recent() >= options_.limit) return std::nullopt;
  std::chrono::milliseconds delay = std::min(options_.delay, options_.longestDelay);
  for (int i = 0; i < recent() && delay < options_.longestDelay; ++i)
    delay = std::min(2 * delay, options_.longestDelay);
  restarts_.push_back(now);
  return delay;
}

}  // namespace dtorch
