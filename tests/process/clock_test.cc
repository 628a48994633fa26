// Neither long kernels nor jumps of the wall's clock look like a dead worker.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
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
  DaemonFixture daemon({.flags = kHeartbeats});
  const auto session = daemon.connect();
  // How long such a product takes here; its time grows as the third power of its extent.
  const auto product = [&](std::int64_t extent) {
    const Tensor x = session->call("aten::ones", {Sizes{extent, extent}});
    return session->call("aten::sum", {session->call("aten::mm", {x, x})}).get();
  };
  const auto begin = Clock::now();
  REQUIRE(product(2048).wait(kDeadline).ok());
  const double took = std::chrono::duration<double>(Clock::now() - begin).count();
  const auto extent = static_cast<std::int64_t>(2048 * std::cbrt(1.6 * kernelSeconds() / took));
  const auto start = Clock::now();
  const Future<HostTensor> value = product(extent);
  const std::set<std::string> states = statesUntil(daemon, [&] { return value.poll(); });
  const auto ran = Clock::now() - start;
  CAPTURE(extent, std::chrono::duration<double>(ran).count());
  CHECK(ran > seconds(kernelSeconds()));
  CHECK(states == std::set<std::string>{"ready"});
  const auto sum = value.wait(kDeadline);
  REQUIRE(sum.ok());
  CHECK(*sum->item() == Approx(std::pow(static_cast<double>(extent), 3)).epsilon(1e-5));
}

// bluechi#952, aeron#609, xen-api#5700
TEST_CASE("the clock of the wall jumps by an hour, forth and back, and nothing happens") {
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
