#include "shm/process_watch.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <utility>

#include "tests/catch.h"

namespace dtorch {

TEST_CASE("a watch tells a live process from an ended one, reaped or not") {
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  auto watch = ProcessWatch::open(child);
  REQUIRE(watch.ok());
  CHECK_FALSE(watch->exited());
  REQUIRE(::kill(child, SIGKILL) == 0);
  siginfo_t info{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) == 0);
  CHECK(watch->exited());
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  CHECK(watch->exited());
  CHECK(ProcessWatch::open(child).status().code() == absl::StatusCode::kNotFound);
  const ProcessWatch moved = std::move(*watch);
  CHECK(moved.exited());
  CHECK(moved.pid() == child);
}

}  // namespace dtorch
