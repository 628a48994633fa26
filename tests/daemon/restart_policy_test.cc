#include "daemon/supervisor/restart_policy.h"

#include "tests/catch.h"

namespace dtorch {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_CASE("each restart waits twice as long as the one before, up to the longest delay") {
  RestartPolicy policy({.delay = milliseconds(100), .longestDelay = milliseconds(700), .limit = 5});
  const RestartPolicy::Clock::time_point now{};
  for (const int expected : {100, 200, 400, 700, 700}) {
    CHECK(policy.lost(now) == milliseconds(expected));
  }
  CHECK(policy.lost(now) == std::nullopt);
  CHECK(policy.recent() == 5);
}

TEST_CASE("what lies before the window is forgotten") {
  RestartPolicy policy({.delay = milliseconds(100), .longestDelay = seconds(1), .limit = 2, .window = seconds(10)});
  const RestartPolicy::Clock::time_point start{};
  CHECK(policy.lost(start) == milliseconds(100));
  CHECK(policy.lost(start + seconds(9)) == milliseconds(200));
  CHECK(policy.lost(start + seconds(10)) == std::nullopt);
  CHECK(policy.lost(start + seconds(11)) == milliseconds(200));
  CHECK(policy.lost(start + seconds(40)) == milliseconds(100));
}

TEST_CASE("a limit of 0 starts none again") {
  RestartPolicy policy({.limit = 0});
  CHECK(policy.lost(RestartPolicy::Clock::now()) == std::nullopt);
}

TEST_CASE("the first delay is not longer than the longest") {
  RestartPolicy policy({.delay = seconds(2), .longestDelay = seconds(1)});
  CHECK(policy.lost(RestartPolicy::Clock::now()) == seconds(1));
}

}  // namespace dtorch
