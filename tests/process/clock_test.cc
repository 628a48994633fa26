// Neither long kernels nor jumps of the wall clock look like a dead worker.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cpp/operators.h"
#include "client/cpp/session.h"
#include "tests/catch.h"
#include "tests/daemon/rpc_processes.h"
#include "tests/process/daemon_fixture.h"

namespace dtorch {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Sizes = std::vector<std::int64_t>;
constexpr auto kDeadline = seconds(180);
const std::vector<std::string> kHeartbeats = {"--heartbeat.interval", "1s", "--heartbeat.silent_after", "4s",
                                              "--worker.silent_kill", "5s"};

/// The states that the workers are in until `done`.
std::set<std::string> statesUntil(const DaemonFixture& daemon, const std::function<bool()>& done) {
  std::set<std::string> states;
  do {
    const v1::StatusReply status = daemon.status();
    for (const v1::WorkerStatus& worker : status.workers()) states.insert(worker.state());
    std::this_thread::sleep_for(milliseconds(50));
  } while (!done());
  return states;
}

// mars#470, dask#6324, dask#8537; DTORCH_KERNEL_SECONDS: how long a kernel shall run at least, each night 30.
int kernelSeconds() {
  const char* text = std::getenv("DTORCH_KERNEL_SECONDS");
  return text == nullptr ? 6 : std::atoi(text);
}

}  // namespace

TEST_CASE("one kernel that runs for long, on all cores, is no silence") {
  std::vector<std::string> flags = kHeartbeats;
  flags.insert(flags.end(), {"--operators.libraries", binFolder() + "/libfatal_operators.so"});
  DaemonFixture daemon({.flags = flags});
  const auto session = daemon.connect();
  const Tensor x = session->call("aten::ones", {Sizes{4}});
  const auto start = Clock::now();
  // On both workers, and so on both cores.
  const Future<HostTensor> value = session->call("fatal::multiply", {x, static_cast<double>(kernelSeconds())}).get();
  const std::set<std::string> states = statesUntil(daemon, [&] { return value.poll(); });
  CHECK(Clock::now() - start >= seconds(kernelSeconds()));
  CHECK(states == std::set<std::string>{"ready"});
  CHECK(value.wait(kDeadline).ok());
}

// bluechi#952, aeron#609, xen-api#5700
TEST_CASE("the wall clock jumps by an hour, forth and back, and nothing happens") {
  const TempDir folder;
  const std::string offset = folder.file("offset");
  const auto jump = [&](const std::string& by) {
    std::ofstream(folder.file("new")) << by << "\n";
    std::filesystem::rename(folder.file("new"), offset);
  };
  jump("+0");
  DaemonFixture daemon({.flags = kHeartbeats,
                        .prefix = {"/usr/bin/env", "LD_PRELOAD=/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
                                   absl::StrCat("FAKETIME_TIMESTAMP_FILE=", offset), "FAKETIME_NO_CACHE=1",
                                   "FAKETIME_DONT_FAKE_MONOTONIC=1", "FAKETIME_DONT_RESET=1"}});
  const auto session = daemon.connect();
  std::set<std::string> hours;
  for (const char* by : {"+3600", "+0", "-3600"}) {
    jump(by);
    // A call with a time limit, too, and one that waits.
    const auto until = Clock::now() + seconds(3);
    const std::set<std::string> states = statesUntil(daemon, [&] {
      CHECK(sumOfOnes(*session).value_or(0) == 8);
      const Tensor x = session->call("aten::ones", {Sizes{8}}, {.timeout = seconds(20)});
      CHECK(x.get().wait(seconds(20)).ok());
      return Clock::now() > until;
    });
    CHECK(states == std::set<std::string>{"ready"});
    // What is logged shows that the clock has jumped.
    CHECK_FALSE(session->call("aten::linalg_cholesky", {session->call("aten::zeros", {Sizes{2, 2}})})
                    .get()
                    .wait(kDeadline)
                    .ok());
    const std::string log = daemon.log();
    const std::vector<std::string> lines = absl::StrSplit(log, '\n', absl::SkipEmpty());
    hours.insert(lines.back().substr(0, 13));
  }
  CHECK(hours.size() == 3);
  CHECK(daemon.status().workers(0).restarts() + daemon.status().workers(1).restarts() == 0);
  CHECK(daemon.connect()->awaitWorkers().wait(kDeadline).ok());
}

}  // namespace dtorch
