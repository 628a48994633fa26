// Orderly ends: by every way, in every state.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
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
constexpr auto kDeadline = seconds(20);

struct Way {
  const char* name;
  std::function<void(DaemonFixture&)> stop;
};

/// dtorchctl, running beside the test.
std::future<ProgramResult> runCtl(const DaemonFixture& daemon, const std::vector<std::string>& words) {
  std::vector<std::string> command = {binFolder() + "/dtorchctl", "--socket", daemon.socket()};
  command.insert(command.end(), words.begin(), words.end());
  return std::async(std::launch::async, [command] { return runProgram(command, seconds(30)); });
}

void checkHasStopped(std::future<ProgramResult> ctl) {
  const ProgramResult result = ctl.get();
  INFO(result.output);
  CHECK(result.exitCode == 0);
  CHECK(result.output.find("has stopped") != std::string::npos);
}

// As systemd's KillMode=control-group does.
void terminateAllProcesses(DaemonFixture& daemon) {
  const v1::StatusReply status = daemon.status();
  for (const v1::WorkerStatus& worker : status.workers()) {
    if (worker.pid() > 0) ::kill(static_cast<pid_t>(worker.pid()), SIGTERM);
  }
  daemon.kill(SIGTERM);
}

const std::vector<Way>& ways() {
  static const std::vector<Way> all = {
      {"SIGTERM", [](DaemonFixture& daemon) { daemon.kill(SIGTERM); }},
      {"SIGINT", [](DaemonFixture& daemon) { daemon.kill(SIGINT); }},
      {"twice",
       [](DaemonFixture& daemon) {
         daemon.kill(SIGTERM);
         std::this_thread::sleep_for(milliseconds(20));
         daemon.kill(SIGTERM);
       }},
      {"the whole group", terminateAllProcesses},
      {"dtorchctl stop", [](DaemonFixture& daemon) { checkHasStopped(runCtl(daemon, {"stop"})); }},
      {"dtorchctl drain",
       [](DaemonFixture& daemon) {
         checkHasStopped(runCtl(daemon, {"drain", "--grace", "1"}));
       }},
  };
  return all;
}

bool blocks(pid_t pid, int signal) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(status, line);) {
    if (absl::StartsWith(line, "SigBlk:")) return (std::stoull(line.substr(7), nullptr, 16) >> (signal - 1) & 1) != 0;
  }
  return false;
}

// Whether it waits for the end of another.
bool holdsProcess(pid_t pid) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/fd"), error)) {
    if (std::filesystem::read_symlink(entry, error) == "anon_inode:[pidfd]") return true;
  }
  return false;
}

// What is under way, and its futures.
struct State {
  const char* name;
  std::function<std::vector<Future<HostTensor>>(const DaemonFixture&, Session&)> begin;
};

// A product that takes about a second on one thread.
Tensor slow(Session& session) {
  const Tensor x = session.call("aten::ones", {Sizes{1024, 1024}});
  Tensor y = x;
  for (int i = 0; i < 40; ++i) y = session.call("aten::mm", {y, x});
  return y;
}

// Collectives, small operators and large values, more than the workers are sent at once.
std::vector<Future<HostTensor>> load(const DaemonFixture& /*daemon*/, Session& session) {
  const std::vector<float> values(1 << 20, 1);
  Tensor x = session.put(HostView::of(values, {1 << 20}), session.mesh(), {Placement::shard(0)});
  for (int i = 0; i < 1000; ++i)
    x = add(x, x).redistribute({i % 2 == 0 ? Placement::replicate() : Placement::shard(0)});
  return {x.get(), slow(session).get()};
}

void signalWorker(const DaemonFixture& daemon, int signal) {
  const auto pid = static_cast<pid_t>(daemon.status().workers(1).pid());
  REQUIRE(pid > 0);
  REQUIRE(::kill(pid, signal) == 0);
}

const std::vector<State>& states() {
  static const std::vector<State> all = {
      {"idle", [](const DaemonFixture&, Session&) { return std::vector<Future<HostTensor>>(); }},
      {"under load", load},
      {"a client waits",
       [](const DaemonFixture&, Session& session) {
         std::vector<Future<HostTensor>> values = {slow(session).get()};
         CHECK(absl::IsDeadlineExceeded(values.front().wait(milliseconds(50)).status()));
         return values;
       }},
      {"a worker is dead, with messages for it on their way",
       [](const DaemonFixture& daemon, Session& session) {
         signalWorker(daemon, SIGSTOP);
         std::vector<Future<HostTensor>> values = load(daemon, session);
         values.front().wait(milliseconds(50)).IgnoreError();
         signalWorker(daemon, SIGKILL);
         return values;
       }},
      {"a worker stands still",
       [](const DaemonFixture& daemon, Session& session) {
         signalWorker(daemon, SIGSTOP);
         return load(daemon, session);
       }},
  };
  return all;
}

}  // namespace

// grpc#24884, grpc#18768, libzmq#2586, libzmq#3915
TEST_CASE("an orderly end, by every way in every state") {
  const Way way = GENERATE(from_range(ways()));
  const State state = GENERATE(from_range(states()));
  const bool threads = std::string(state.name).find("worker") == std::string::npos &&
                       std::string(way.name).find("group") == std::string::npos && GENERATE(false, true);
  CAPTURE(way.name, state.name, threads);
  DaemonFixture daemon({.threads = threads});
  const auto session = daemon.connect();
  REQUIRE(sumOfOnes(*session).ok());
  const std::vector<Future<HostTensor>> values = state.begin(daemon, *session);
  const auto begin = Clock::now();
  way.stop(daemon);
  const std::optional<int> end = daemon.waitForEnd(seconds(15));
  INFO(daemon.log());
  REQUIRE(end.has_value());
  CHECK(Clock::now() - begin < seconds(10));
  CHECK((WIFEXITED(*end) && WEXITSTATUS(*end) == 0));
  for (const Future<HostTensor>& value : values) {
    const absl::Status status = value.wait(kDeadline).status();
    CAPTURE(std::string(status.message()));
    // A drain lets some end; with the whole group, or one of it, a worker's end may be heard first.
    const FailureKind kind = failureKind(status);
    const bool explained =
        absl::IsUnavailable(status) || kind == FailureKind::kWorkerLost || kind == FailureKind::kTensorLost;
    CHECK((explained || (status.ok() && std::string(way.name) == "dtorchctl drain")));
  }
  for (const auto& entry : std::filesystem::directory_iterator(daemon.folder()))
    CHECK(entry.path().filename() == "log");
}

TEST_CASE("a drain waits for the sessions, and takes no new ones") {
  DaemonFixture daemon;
  auto session = daemon.connect();
  const Future<HostTensor> value = slow(*session).get();
  std::future<ProgramResult> ctl = runCtl(daemon, {"drain", "--grace", "60"});
  REQUIRE(eventually([&] { return daemon.status().health() == v1::HEALTH_DRAINING; }, seconds(5)));
  const auto refused = Session::connect({daemon.socket(), seconds(5), "late"});
  CHECK(absl::IsUnavailable(refused.status()));
  CHECK(std::string(refused.status().message()).find("draining") != std::string::npos);
  CHECK(value.wait(kDeadline).ok());
  CHECK(sumOfOnes(*session).value_or(0) == 8);
  const auto begin = Clock::now();
  session.reset();
  checkHasStopped(std::move(ctl));
  CHECK(Clock::now() - begin < seconds(5));
  const std::optional<int> end = daemon.waitForEnd(seconds(5));
  REQUIRE(end.has_value());
  CHECK((WIFEXITED(*end) && WEXITSTATUS(*end) == 0));
}

TEST_CASE("a drain ends at its limit, or with a stop") {
  DaemonFixture daemon;
  const auto session = daemon.connect();
  const bool isStopped = GENERATE(false, true);
  const auto begin = Clock::now();
  std::future<ProgramResult> ctl = runCtl(daemon, {"drain", "--grace", isStopped ? "60" : "1"});
  REQUIRE(eventually([&] { return daemon.status().health() == v1::HEALTH_DRAINING; }, seconds(5)));
  if (isStopped) daemon.kill(SIGTERM);
  checkHasStopped(std::move(ctl));
  CHECK(Clock::now() - begin < seconds(8));
  const std::optional<int> end = daemon.waitForEnd(seconds(5));
  REQUIRE(end.has_value());
  CHECK((WIFEXITED(*end) && WEXITSTATUS(*end) == 0));
  CHECK(absl::IsUnavailable(sumOfOnes(*session).status()));
}

TEST_CASE("a stop of a daemon that is stopping waits for its end, too") {
  DaemonFixture daemon;
  signalWorker(daemon, SIGSTOP);  // its end takes the daemon more than a second
  std::future<ProgramResult> first = runCtl(daemon, {"stop"});
  REQUIRE(eventually([&] { return !std::filesystem::exists(daemon.socket()); }, seconds(5)));
  daemon.kill(SIGSTOP);  // nor does it end before it is waited for
  const TempDir folder;
  const pid_t second =
      startProgram({binFolder() + "/dtorchctl", "--socket", daemon.socket(), "stop"}, folder.file("second"));
  CHECK(eventually([&] { return holdsProcess(second); }, kDeadline));
  daemon.kill(SIGCONT);
  CHECK(waitForChild(second, kDeadline) == 0);
  CHECK(absl::StrContains(readFile(folder.file("second")), "has stopped"));
  checkHasStopped(std::move(first));
  REQUIRE(daemon.waitForEnd(seconds(5)).has_value());
}

TEST_CASE("a stop during the start-up, at any moment of it") {
  const int signal = GENERATE(SIGTERM, SIGINT);
  for (int round = 0; round < 8; ++round) {
    const TempDir folder;
    CAPTURE(signal, round);
    const pid_t pid = startProgram({binFolder() + "/dtorchd", "--runtime.dir", folder.path()}, folder.file("log"));
    REQUIRE(eventually([&] { return blocks(pid, signal); }, kDeadline));
    if (round < 7) {
      std::this_thread::sleep_for(milliseconds(round * 100));
    } else {  // as soon as it can be asked
      eventually([&] { return std::filesystem::exists(folder.file("dtorchd.sock")); }, kDeadline);
    }
    const auto begin = Clock::now();
    ::kill(pid, signal);
    const std::optional<int> end = waitForChild(pid, seconds(15));
    if (!end) ::kill(pid, SIGKILL);
    REQUIRE(end.has_value());
    CHECK(Clock::now() - begin < seconds(10));
    CHECK((WIFEXITED(*end) && WEXITSTATUS(*end) == 0));
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
      CHECK(entry.path().filename() == "log");
    }
  }
}

}  // namespace dtorch
