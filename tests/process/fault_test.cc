// Kernels that end their process, take for ever or fail with a novel; and how to look at what workers do.
#include <signal.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/operators.h"
#include "client/cpp/session.h"
#include "proto/codec.h"
#include "tests/catch.h"
#include "tests/process/daemon_fixture.h"

namespace dtorch {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Sizes = std::vector<std::int64_t>;
constexpr auto kDeadline = seconds(30);

DaemonFixture::Options withFatalOperators(int workers) {
  return {
      .workers = workers,
      .flags = {"--operators.libraries", binFolder() + "/libfatal_operators.so", "--workers.restart_delay", "20ms"}};
}

Tensor onesOn(Session& session, std::vector<Rank> ranks) {
  return session.call("aten::ones", {Sizes{4}}, {.mesh = *session.mesh(std::move(ranks))});
}

ProgramResult runCtl(const DaemonFixture& daemon, const std::vector<std::string>& words) {
  std::vector<std::string> command = {binFolder() + "/dtorchctl", "--socket", daemon.socket()};
  command.insert(command.end(), words.begin(), words.end());
  return runProgram(command, seconds(20));
}

// 0: the daemon has none.
pid_t metadataProcess(pid_t daemon) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string status = readFile(entry.path().string() + "/status");
    if (absl::StartsWith(status, "Name:\tdtorch-metadata\n") &&
        absl::StrContains(status, absl::StrCat("PPid:\t", daemon, "\n")))
      return std::stoi(entry.path().filename());
  }
  return 0;
}

}  // namespace

TEST_CASE("a metadata process that is stopped or killed is replaced, and nobody else notices") {
  DaemonFixture daemon;
  const auto session = daemon.connect();
  REQUIRE(sumOfOnes(*session).ok());
  const int signal = GENERATE(SIGSTOP, SIGKILL);
  const pid_t pid = metadataProcess(daemon.pid());
  REQUIRE(pid > 0);
  REQUIRE(::kill(pid, signal) == 0);
  const auto begin = Clock::now();
  const Tensor x = session->call("aten::ones", {Sizes{3, 5, 7}});
  const absl::StatusOr<HostTensor> sum = call("aten::sum", {x}).get().wait(kDeadline);
  CAPTURE(signal, sum.status().ToString(), daemon.log());
  REQUIRE(sum.ok());
  CHECK(sum->item().value_or(0) == 105);
  CHECK(Clock::now() - begin < seconds(5));
  CHECK(metadataProcess(daemon.pid()) != pid);
  CHECK(absl::StrContains(daemon.log(), absl::StrCat("the metadata process, pid ", pid, ", was stopped")) ==
        (signal == SIGSTOP));
}

TEST_CASE("a question that a socket does not hold does not wait for a metadata process that is stopped") {
  DaemonFixture daemon;
  const auto session = daemon.connect();
  REQUIRE(sumOfOnes(*session).ok());
  const pid_t pid = metadataProcess(daemon.pid());
  REQUIRE(pid > 0);
  REQUIRE(::kill(pid, SIGSTOP) == 0);
  const auto begin = Clock::now();
  const Tensor one = session->call("aten::ones", {Sizes{1}});
  CHECK(absl::IsInvalidArgument(call("aten::view", {one, Sizes(400'000, 1)}).get().wait(kDeadline).status()));
  CHECK(sumOfOnes(*session).value_or(0) == 8);
  CHECK(Clock::now() - begin < seconds(5));
}

// ray#47204, ray#15045, ray#6612, vllm#27313
TEST_CASE("a kernel that ends its process, by a signal or with exit code 0, fails what needs the worker") {
  DaemonFixture daemon(withFatalOperators(4));
  const auto session = daemon.connect();
  const auto elsewhere = daemon.connect();
  const auto [name, what] = GENERATE(std::pair<std::string, std::string>{"fatal::exit", "exit code 0"},
                                     std::pair<std::string, std::string>{"fatal::crash", "SIGSEGV"});
  CAPTURE(name);
  const std::int64_t victim = daemon.status().workers(2).pid();
  const Tensor apart = onesOn(*elsewhere, {0, 1});
  REQUIRE(apart.get().wait(kDeadline).ok());
  const std::vector<float> values = {1, 2, 3, 4, 5, 6, 7, 8};
  const Tensor x = session->put(HostView::of(values, {8}), session->mesh(), {Placement::shard(0)});
  REQUIRE(x.get().wait(kDeadline).ok());
  // Rank 2 ends; the others are in a collective with it, or behind it. The first ones may be done by then.
  const Tensor fatal = call(name, {onesOn(*session, {2})});
  std::vector<Future<HostTensor>> pending = {fatal.get()};
  Tensor y = x;
  for (int i = 0; i < 2000; ++i) y = y.redistribute({i % 2 == 0 ? Placement::replicate() : Placement::shard(0)});
  pending.push_back(y.get());
  pending.push_back(call("aten::sum", {y}).get());
  const auto begin = Clock::now();
  for (const Future<HostTensor>& value : pending) {
    const absl::Status status = value.wait(kDeadline).status();
    CAPTURE(std::string(status.message()));
    const FailureKind kind = failureKind(status);
    CHECK((kind == FailureKind::kWorkerLost || kind == FailureKind::kTensorLost));
    CHECK(absl::StrContains(status.message(), absl::StrCat(victim)));
    CHECK(absl::StrContains(status.message(), what));
  }
  // Which call it was, as far as that is known here.
  const absl::Status first = pending.front().wait(kDeadline).status();
  CAPTURE(std::string(first.message()));
  CHECK(absl::StrContains(first.message(), name));
  CHECK(absl::StrContains(daemon.log(), absl::StrCat(name, ", was called by session ", session->id())));
  CHECK(absl::StrContains(daemon.log(), "fault_test.cc"));
  CHECK(Clock::now() - begin < seconds(3));  // one second, on a machine with other work
  CHECK(call("aten::add.Tensor", {apart, apart}).get().wait(kDeadline).ok());
  REQUIRE(session->awaitWorkers().wait(kDeadline).ok());
  CHECK(sumOfOnes(*session).value_or(0) == 8);
}

TEST_CASE("the text of an error arrives as UTF-8, cut between characters, and is in the log as a whole") {
  DaemonFixture daemon(withFatalOperators(2));
  const auto session = daemon.connect();
  for (const int count : {1, 1200, 1366, 100'000}) {
    CAPTURE(count);
    const absl::Status status =
        call("fatal::complain", {onesOn(*session, {0, 1}), count}).get().wait(kDeadline).status();
    CHECK(absl::IsInvalidArgument(status));
    CHECK(failureKind(status) == FailureKind::kOperatorFailed);
    CHECK(status.message().size() < 2 * kMaxStatusText);
    const std::string text(status.message());
    CHECK(printable(text, text.size()) == text);  // it is UTF-8 as it came
    CHECK(absl::StrContains(text, "fatal::complain"));
    CHECK(absl::StrContains(text, "fault_test.cc"));
    CHECK(absl::StrContains(text, "?e\xc3\xa9"));
    CHECK(absl::StrContains(text, " the end") == (count <= 1200));
  }
  CHECK(eventually([&] { return absl::StrContains(daemon.log(), "e\xc3\xa9 the end"); }, seconds(5)));
  // What the daemon itself refuses has a text of its own, that is never long.
  std::vector<Tensor> parts(1000, onesOn(*session, {0, 1}));
  parts.push_back(parts[0].redistribute({Placement::shard(0)}));
  const absl::Status refused = session->call("aten::cat", {parts, 0}).get().wait(kDeadline).status();
  CHECK(absl::IsInvalidArgument(refused));
  CHECK(refused.message().size() < 2 * kMaxStatusText);
  CHECK(sumOfOnes(*session).value_or(0) == 8);
}

TEST_CASE("a worker is stuck when its operator takes longer than it may, and named") {
  DaemonFixture::Options options = withFatalOperators(2);
  options.flags.insert(options.flags.end(), {"--worker.stuck_after", "500ms", "--heartbeat.interval", "100ms"});
  DaemonFixture daemon(options);
  const auto session = daemon.connect();
  const auto other = daemon.connect();
  const Future<HostTensor> late = call("fatal::sleep", {onesOn(*session, {1}), 6.0}).get();
  REQUIRE(eventually([&] { return daemon.status().workers(1).state() == "stuck"; }, seconds(2)));
  const v1::StatusReply status = daemon.status();
  CHECK(status.health() == v1::HEALTH_DEGRADED);
  CHECK(absl::StrContains(status.workers(1).detail(), "fatal::sleep"));
  CHECK(status.workers(0).state() == "ready");
  CHECK(onesOn(*other, {0}).get().wait(kDeadline).ok());

  const ProgramResult stuck = runCtl(daemon, {"stuck"});
  CHECK(absl::StrContains(stuck.output, "fatal::sleep"));
  CHECK(absl::StrContains(stuck.output, "fault_test.cc"));
  const ProgramResult stacks = runCtl(daemon, {"stuck", "--stacks"});
  INFO(stacks.output);
  CHECK(absl::StrContains(stacks.output, "clock_nanosleep"));
  CHECK(absl::StrContains(stacks.output, "dtorch::KernelRunner::run()"));
  CHECK(absl::StrContains(stacks.output, "w1.compute"));
  CHECK(absl::StrContains(stacks.output, "w0.loop"));
  CHECK(late.wait(kDeadline).ok());
  CHECK(eventually([&] { return daemon.status().health() == v1::HEALTH_HEALTHY; }, seconds(2)));
}

TEST_CASE("stacks that are asked for again and again disturb nothing") {
  DaemonFixture::Options options;
  options.threads = GENERATE(false, true);
  options.flags = {"--heartbeat.interval", "100ms"};
  DaemonFixture daemon(options);
  std::atomic<bool> enough = false;
  std::atomic<int> answers = 0;
  std::jthread asking([&] {
    while (!enough) {
      const ProgramResult stacks = runCtl(daemon, {"--json", "stuck", "--stacks"});
      const nlohmann::json json = nlohmann::json::parse(stacks.output, nullptr, false);
      if (json.is_object() && json["stacks"].size() == 2 && json["stacks"][0]["threads"].size() > 4 &&
          json["stacks"][1]["threads"].size() > 4) {
        ++answers;
      }
    }
  });
  const auto until = Clock::now() + kDeadline;
  const auto end = absl::MakeCleanup([&] { enough = true; });
  const auto session = daemon.connect();
  const std::vector<float> values(1 << 20, 1);
  int rounds = 0;
  do {
    Tensor x = session->put(HostView::of(values, {1 << 20}), session->mesh(), {Placement::shard(0)});
    for (int i = 0; i < 20; ++i)
      x = add(x, x).redistribute({i % 2 == 0 ? Placement::replicate() : Placement::shard(0)});
    const auto value = x.get().wait(kDeadline);
    INFO(value.status());
    CHECK((value.ok() && value->values<float>()->back() == 1 << 20));
    CHECK(sumOfOnes(*daemon.connect()).value_or(0) == 8);
    ++rounds;
  } while (answers < 5 && Clock::now() < until);
  CAPTURE(rounds);
  CHECK(answers >= 5);
  CHECK(daemon.status().health() == v1::HEALTH_HEALTHY);
}

TEST_CASE("a worker that stands still has no stacks to show, the others have") {
  DaemonFixture daemon({.flags = {"--heartbeat.interval", "100ms", "--heartbeat.silent_after", "2s"}});
  const auto pid = static_cast<pid_t>(daemon.status().workers(1).pid());
  REQUIRE(::kill(pid, SIGSTOP) == 0);
  REQUIRE(eventually([&] { return daemon.status().workers(1).state() == "silent"; }, seconds(5)));
  const ProgramResult stacks = runCtl(daemon, {"stuck", "--stacks"});
  INFO(stacks.output);
  CHECK(stacks.exitCode == 1);
  CHECK(absl::StrContains(stacks.output, "silent: its stacks have not come"));
  CHECK(absl::StrContains(stacks.output, "w0.loop"));
  REQUIRE(::kill(pid, SIGCONT) == 0);
}

}  // namespace dtorch
