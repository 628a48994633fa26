// SIGKILL of each role, in each state, at a random moment: a few rounds for each change, DTORCH_KILL_ROUNDS each night.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

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
constexpr auto kDeadline = seconds(30);
constexpr std::int64_t kLarge = 4 << 20;  // floats

int rounds() {
  const char* text = std::getenv("DTORCH_KILL_ROUNDS");
  return text == nullptr ? 2 : std::atoi(text);
}

class Dice {
 public:
  Dice() : seed_(std::random_device{}()), random_(seed_) {}
  unsigned seed() const { return seed_; }
  int upTo(int most) { return std::uniform_int_distribution<int>(0, most)(random_); }
  void wait(int mostMs) { std::this_thread::sleep_for(std::chrono::microseconds(upTo(mostMs * 1000))); }

 private:
  const unsigned seed_;
  std::mt19937 random_;
};

/// What a session has under way when somebody is killed.
struct State {
  const char* name;
  std::function<std::vector<Future<HostTensor>>(Session&)> begin;
};

Tensor sharded(Session& session, std::int64_t elements) {
  const std::vector<float> values(static_cast<std::size_t>(elements), 1);
  return session.put(HostView::of(values, {elements}), session.mesh(), {Placement::shard(0)});
}

const std::vector<State>& states() {
  static const std::vector<State> all = {
      {"idle", [](Session&) { return std::vector<Future<HostTensor>>(); }},
      {"computing",
       [](Session& session) {
         const Tensor x = session.call("aten::ones", {Sizes{500, 500}}, {.mesh = session.mesh()});
         Tensor y = x;
         for (int i = 0; i < 50; ++i) y = session.call("aten::mm", {y, x});
         return std::vector<Future<HostTensor>>{y.get(), x.get()};
       }},
      {"in collectives",
       [](Session& session) {
         Tensor x = sharded(session, 1000);
         for (int i = 0; i < 300; ++i) x = x.redistribute({i % 2 == 0 ? Placement::replicate() : Placement::shard(0)});
         return std::vector<Future<HostTensor>>{x.get()};
       }},
      {"putting", [](Session& session) { return std::vector<Future<HostTensor>>{sharded(session, kLarge).get()}; }},
      {"getting",
       [](Session& session) {
         const Tensor x = session.call("aten::ones", {Sizes{kLarge}}, {.mesh = session.mesh()});
         return std::vector<Future<HostTensor>>{x.get(), x.get(), add(x, x).get()};
       }},
      {"cancelling",
       [](Session& session) {
         Tensor x = sharded(session, 1000);
         for (int i = 0; i < 300; ++i)
           x = add(x, x).redistribute({i % 2 == 0 ? Placement::replicate() : Placement::shard(0)});
         std::vector<Future<HostTensor>> values = {x.get()};
         session.cancel().IgnoreError();
         return values;
       }},
  };
  return all;
}

bool isExplained(const absl::Status& status) {
  const FailureKind kind = failureKind(status);
  return kind == FailureKind::kWorkerLost || kind == FailureKind::kTensorLost || kind == FailureKind::kCancelled;
}

// Traces the daemon until it has spawned its worker number `which`, which it holds before its first instruction, so
// before exec. 0: the daemon ended before.
pid_t holdBeforeExec(pid_t daemon, int which) {
  if (::ptrace(PTRACE_SEIZE, daemon, 0, PTRACE_O_TRACEVFORK) != 0) return 0;
  for (int spawned = 0;;) {
    int status = 0;
    const pid_t pid = ::waitpid(-1, &status, __WALL);
    if (pid < 0 || (pid == daemon && !WIFSTOPPED(status))) return 0;
    const int event = status >> 16;
    if (pid != daemon) {
      if (event == PTRACE_EVENT_STOP && spawned++ == which) return pid;
      ::ptrace(PTRACE_DETACH, pid, 0, 0);
    } else {
      ::ptrace(PTRACE_CONT, pid, 0, event == 0 ? WSTOPSIG(status) : 0);
    }
  }
}

bool holdsNothing(const DaemonFixture& daemon) {
  const v1::StatusReply status = daemon.status();
  std::int64_t bytes = 0;
  for (const v1::WorkerStatus& worker : status.workers()) bytes += worker.tensor_bytes();
  return bytes == 0;
}

}  // namespace

TEST_CASE("a worker is killed") {  // ray#47204, ray#15045, vllm#7454
  Dice dice;
  INFO("seed " << dice.seed());
  DaemonFixture daemon(
      {.workers = 3,
       .flags = {"--workers.restart_delay", "10ms", "--workers.restart_max_delay", "100ms", "--workers.restart_limit",
                 "1000000", "--heartbeat.interval", "100ms", "--heartbeat.silent_after", "5s"}});
  const auto bystander = daemon.connect();
  for (const State& state : states()) {
    for (int round = 0; round < rounds(); ++round) {
      CAPTURE(state.name, round);
      const auto session = daemon.connect();
      const std::vector<Future<HostTensor>> values = state.begin(*session);
      dice.wait(round % 2 == 0 ? 5 : 60);
      const auto victim = static_cast<pid_t>(daemon.status().workers(dice.upTo(2)).pid());
      if (victim > 0) ::kill(victim, SIGKILL);
      const auto killed = Clock::now();
      for (const Future<HostTensor>& value : values) {
        const absl::Status status = value.wait(kDeadline).status();
        CAPTURE(std::string(status.message()));
        CHECK((status.ok() || isExplained(status)));
      }
      if (!values.empty()) CHECK(Clock::now() - killed < seconds(5));  // one second, on a machine with other work
      if (dice.upTo(2) == 0) {  // its successor, too, while it starts or soon after
        dice.wait(300);
        const auto next = static_cast<pid_t>(daemon.status().workers(dice.upTo(2)).pid());
        if (next > 0) ::kill(next, SIGKILL);
      }
      const auto goesOn = [&] {
        return session->awaitWorkers().wait(kDeadline).ok() && sumOfOnes(*session).value_or(0) == 8;
      };
      REQUIRE(eventually(goesOn, kDeadline));
    }
  }
  CHECK(eventually([&] { return sumOfOnes(*bystander).value_or(0) == 8; }, kDeadline));
  CHECK(eventually([&] { return holdsNothing(daemon); }, kDeadline));
  CHECK(daemon.status().sessions_size() == 1);
}

// Does what the state says on the daemon at DTORCH_TEST_SOCKET, and waits to be killed.
TEST_CASE("role: client", "[.]") {
  const auto session = Session::connect({.address = roleVariable("DTORCH_TEST_SOCKET")});
  if (!session.ok()) return roleSays("failed");
  const auto state = static_cast<std::size_t>(std::stoi(roleVariable("DTORCH_TEST_STATE")));
  const auto values = states()[state].begin(**session);
  (*session)->call("aten::ones", {Sizes{1000}}, {.mesh = (*session)->mesh()}).get().wait(milliseconds(1)).IgnoreError();
  roleSays("under way");
  std::string line;
  roleHears(&line);
}

TEST_CASE("a client is killed: its tensors go with it") {
  Dice dice;
  INFO("seed " << dice.seed());
  DaemonFixture daemon({.flags = {"--heartbeat.interval", "100ms", "--heartbeat.silent_after", "5s"}});
  const auto bystander = daemon.connect();
  for (std::size_t state = 0; state < states().size(); ++state) {
    for (int round = 0; round < rounds(); ++round) {
      CAPTURE(states()[state].name, round);
      RoleProcess client("role: client",
                         {{"DTORCH_TEST_SOCKET", daemon.socket()}, {"DTORCH_TEST_STATE", std::to_string(state)}});
      if (round % 2 == 0) {
        REQUIRE(client.readLine().value_or("") == "under way");
      } else {
        dice.wait(60);
      }
      client.signal(SIGKILL);
      REQUIRE(client.wait());
      CHECK(eventually([&] { return daemon.status().sessions_size() == 1; }, seconds(5)));
      CHECK(sumOfOnes(*bystander).value_or(0) == 8);
    }
  }
  CHECK(eventually([&] { return holdsNothing(daemon) && daemon.status().operators_in_flight() == 0; }, kDeadline));
}

TEST_CASE(
    "the daemon is killed, also while it starts and between spawn and exec: no worker outlives it, and the next one "
    "just starts") {
  Dice dice;
  INFO("seed " << dice.seed());
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  const TempDir folder;
  const auto start = [&] {
    return startProgram({binFolder() + "/dtorchd", "--runtime.dir", folder.path()}, folder.file("log"));
  };
  const auto nobodyLeft = [] {
    pid_t ended = 0;
    do ended = ::waitpid(-1, nullptr, WNOHANG);
    while (ended > 0);
    return ended < 0 && errno == ECHILD;
  };
  for (int round = 0; round < rounds(); ++round) {
    CAPTURE(round);
    const pid_t daemon = start();
    const pid_t worker = holdBeforeExec(daemon, round % 2);
    REQUIRE(worker > 0);
    ::kill(daemon, SIGKILL);
    REQUIRE(waitForChild(daemon, kDeadline).has_value());
    CHECK(::ptrace(PTRACE_DETACH, worker, 0, 0) == 0);
    CHECK(eventually(nobodyLeft, seconds(5)));
  }
  pid_t daemon = start();
  for (int round = 0; round < 3 * rounds(); ++round) {
    CAPTURE(round);
    dice.wait(round % 3 == 0 ? 30 : 700);
    INFO(readFile(folder.file("log")));
    CHECK_FALSE(waitForChild(daemon, milliseconds(0)).has_value());  // it has not ended by itself
    ::kill(daemon, SIGKILL);
    if (round % 2 == 0) CHECK(eventually(nobodyLeft, seconds(5)));  // else the next one comes at once
    daemon = start();
  }
  const std::string socket = folder.file("dtorchd.sock");
  const ProgramResult ready =
      runProgram({binFolder() + "/dtorchctl", "--socket", socket, "status", "--wait", "30"}, kDeadline);
  INFO(ready.output << readFile(folder.file("log")));
  REQUIRE(ready.exitCode == 0);
  CHECK(sumOfOnes(**Session::connect({.address = socket})).value_or(0) == 8);
  ::kill(daemon, SIGTERM);
  CHECK(eventually(nobodyLeft, seconds(10)));
}

}  // namespace dtorch
