// Starts: the first message counts, and of two daemons one wins.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/session.h"
#include "tests/catch.h"
#include "tests/daemon/rpc_processes.h"
#include "tests/process/daemon_fixture.h"

namespace dtorch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Sizes = std::vector<std::int64_t>;
constexpr auto kDeadline = seconds(30);

/// A dtorchd that the test starts itself, to see how it begins. Ends with it.
class StartedDaemon {
 public:
  StartedDaemon(const std::string& folder, const std::vector<std::string>& flags) : folder_(folder) {
    std::vector<std::string> command = {binFolder() + "/dtorchd", "--runtime.dir", folder};
    command.insert(command.end(), flags.begin(), flags.end());
    pid_ = startProgram(command, folder + "/log");
  }
  StartedDaemon(const StartedDaemon&) = delete;
  StartedDaemon& operator=(const StartedDaemon&) = delete;
  ~StartedDaemon() {
    if (pid_ == 0) return;
    ::kill(pid_, SIGTERM);
    wait();
  }
  /// Connects as soon as somebody listens, without waiting for anything else.
  std::shared_ptr<Session> connectAtOnce() const {
    const std::string socket = folder_ + "/dtorchd.sock";
    std::shared_ptr<Session> session;
    const auto tryIt = [&] {
      auto connected = Session::connect({socket, seconds(20), "early"});
      if (connected.ok()) session = *connected;
      return connected.ok();
    };
    REQUIRE(eventually(tryIt, kDeadline));
    return session;
  }
  /// The exit code; -1: a signal, or it had to be killed.
  int wait() {
    const pid_t pid = std::exchange(pid_, 0);
    const std::optional<int> status = waitForChild(pid, seconds(20));
    if (status) return WIFEXITED(*status) ? WEXITSTATUS(*status) : -1;
    ::kill(pid, SIGKILL);
    waitForChild(pid, seconds(20));
    return -1;
  }
  bool hasEnded() {
    siginfo_t info{};
    return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid_;
  }
  pid_t pid() const { return pid_; }

 private:
  const std::string folder_;
  pid_t pid_ = 0;
};

/// A worker program that waits before it begins, as the worker of rank 1.
std::string lateWorker(const TempDir& folder) {
  const std::string path = folder.file("late-worker");
  std::ofstream(path) << "#!/bin/sh\ncase \" $* \" in *\" --rank 1 \"*) sleep 3;; esac\nexec " << binFolder()
                      << "/dtorch-worker \"$@\"\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

int starts() {
  const char* text = std::getenv("DTORCH_STARTS");
  return text == nullptr ? 5 : std::atoi(text);
}

}  // namespace

// libzmq#2267, libzmq#4656, azmq#197
TEST_CASE("the first operator counts, sent the moment that the address answers") {
  for (int round = 0; round < starts(); ++round) {
    CAPTURE(round);
    const TempDir folder;
    StartedDaemon daemon(folder.path(), {});
    CHECK(sumOfOnes(*daemon.connectAtOnce()).value_or(0) == 8);
  }
}

TEST_CASE("the first operator counts, though one worker comes three seconds late") {
  const TempDir folder;
  StartedDaemon daemon(folder.path(), {"--worker.binary", lateWorker(folder)});
  CHECK(sumOfOnes(*daemon.connectAtOnce()).value_or(0) == 8);
}

TEST_CASE("the first operator after a restart counts, though the new worker comes late") {
  const TempDir folder;
  DaemonFixture daemon({.flags = {"--worker.binary", lateWorker(folder), "--workers.restart_delay", "10ms"}});
  const auto session = daemon.connect();
  REQUIRE(::kill(static_cast<pid_t>(daemon.status().workers(1).pid()), SIGKILL) == 0);
  REQUIRE(eventually([&] { return daemon.status().health() == v1::HEALTH_DEGRADED; }, seconds(5)));
  REQUIRE(session->awaitWorkers().wait(kDeadline).ok());
  CHECK(sumOfOnes(*session).value_or(0) == 8);
}

// grpc#17298, grpc#20278, dragonfly#3782
TEST_CASE("of two daemons that start at once for one folder one serves, and the other one names it") {
  for (int round = 0; round < 3; ++round) {
    CAPTURE(round);
    const TempDir folder;
    std::array<StartedDaemon, 2> daemons = {{{folder.path(), {}}, {folder.path(), {}}}};
    REQUIRE(eventually([&] { return daemons[0].hasEnded() || daemons[1].hasEnded(); }, kDeadline));
    StartedDaemon& loser = daemons[0].hasEnded() ? daemons[0] : daemons[1];
    StartedDaemon& winner = daemons[0].hasEnded() ? daemons[1] : daemons[0];
    CHECK(sumOfOnes(*winner.connectAtOnce()).value_or(0) == 8);
    CHECK_FALSE(winner.hasEnded());
    CHECK(loser.wait() == 1);
    CHECK(absl::StrContains(readFile(folder.file("log")), absl::StrCat(winner.pid())));
  }
}

TEST_CASE("a daemon whose TCP address another one has ends, and names the address") {
  const TempDir folder;
  const TempDir other;
  const std::string address = absl::StrCat("127.0.0.1:", freeTcpPort());
  StartedDaemon first(folder.path(), {"--listen.tcp", address});
  CHECK(sumOfOnes(*first.connectAtOnce()).value_or(0) == 8);
  const ProgramResult second =
      runProgram({binFolder() + "/dtorchd", "--runtime.dir", other.path(), "--listen.tcp", address}, kDeadline);
  INFO(second.output);
  CHECK(second.exitCode == 1);
  CHECK(absl::StrContains(second.output, address));
  CHECK(sumOfOnes(**Session::connect({address})).value_or(0) == 8);
}

// LMCache PR#3530, libzmq PR#1176
TEST_CASE("folders whose sockets have long paths work, or end the start with the number") {
  const TempDir folder;
  for (const std::size_t length : {60UL, 90UL, 91UL, 92UL, 93UL, 94UL, 95UL, 100UL, 150UL}) {
    CAPTURE(length);
    const std::string path = folder.path() + "/" + std::string(length - folder.path().size() - 1, 'd');
    std::filesystem::create_directory(path);
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    StartedDaemon daemon(path, {});
    bool works = false;
    REQUIRE(eventually(
        [&] {
          const auto session = Session::connect({path + "/dtorchd.sock", seconds(20), "long"});
          works = session.ok() && sumOfOnes(**session).value_or(0) == 8;
          return works || daemon.hasEnded();
        },
        kDeadline));
    CHECK(works == (length <= 107 - std::string("/supervisor.sock").size()));  // the longest that is needed
    if (works) continue;
    CHECK(daemon.wait() == 1);
    const std::string output = runProgram({binFolder() + "/dtorchd", "--runtime.dir", path}, kDeadline).output;
    INFO(output);
    CHECK(absl::StrContains(output, "107"));
    const ProgramResult named = runProgram(
        {binFolder() + "/dtorchd", "--runtime.dir", path, "--listen.socket", folder.file("short.sock")}, kDeadline);
    INFO(named.output);
    CHECK(named.exitCode == 1);
    CHECK(absl::StrContains(named.output, "107"));
  }
}

// Proxies are for the network beyond this machine.
TEST_CASE("proxy variables hijack no local connection") {
  std::vector<std::string> proxies = {"/usr/bin/env"};
  for (const char* name : {"http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy"})
    proxies.push_back(absl::StrCat(name, "=http://127.0.0.1:1"));
  DaemonFixture daemon({.flags = {"--heartbeat.interval", "100ms"}, .prefix = proxies});
  std::vector<std::string> hello = proxies;
  hello.insert(hello.end(), {binFolder() + "/hello", daemon.socket()});
  CHECK(runProgram(hello, kDeadline).output == "25 30\n");
  CHECK(daemon.status().workers(0).heartbeat_age_ms() >= 0);
}

}  // namespace dtorch
