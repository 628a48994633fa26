// What a lost worker costs, and how the daemon gets another one.
#include <signal.h>

#include <array>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "client/cpp/operators.h"
#include "client/cpp/session.h"
#include "tests/catch.h"
#include "tests/process/daemon_fixture.h"

namespace dtorch {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::seconds;
constexpr auto kDeadline = seconds(20);
const std::vector<std::string> kSoon = {"--workers.restart_delay", "20ms"};

void killWorker(const DaemonFixture& daemon, Rank rank, int signal = SIGKILL) {
  const auto pid = static_cast<pid_t>(daemon.status().workers(rank).pid());
  REQUIRE(pid > 0);
  REQUIRE(::kill(pid, signal) == 0);
}

bool isHealthy(const DaemonFixture& daemon) { return daemon.status().health() == v1::HEALTH_HEALTHY; }

std::string message(const absl::Status& status) { return std::string(status.message()); }

Tensor sharded(Session& session, const Mesh& mesh) {
  const std::vector<float> values = {1, 2, 3, 4, 5};
  return session.put(HostView::of(values, {5}), mesh, {Placement::shard(0)});
}

}  // namespace

TEST_CASE("after the loss of a worker a session goes on with another one, without reconnecting") {
  DaemonFixture daemon({.flags = kSoon});
  const auto session = daemon.connect();
  const Tensor lost = sharded(*session, session->mesh());
  const auto own = session->mesh({1, 0});
  REQUIRE(own.ok());
  const Tensor lostToo = sharded(*session, *own);
  const auto alone = session->mesh({0});
  REQUIRE(alone.ok());
  const Tensor kept = sharded(*session, *alone);
  REQUIRE(lost.get().wait(kDeadline).ok());
  REQUIRE(lostToo.get().wait(kDeadline).ok());
  const std::int64_t victim = daemon.status().workers(1).pid();
  killWorker(daemon, 1);
  REQUIRE(eventually([&] { return !sumOfOnes(*session).ok(); }, seconds(1)));

  REQUIRE(session->awaitWorkers().wait(kDeadline).ok());
  const v1::StatusReply status = daemon.status();
  CHECK(status.health() == v1::HEALTH_HEALTHY);
  CHECK(status.workers(1).pid() != victim);
  CHECK(status.workers(1).restarts() == 1);
  CHECK(status.workers(1).state() == "ready");
  CHECK(status.workers(1).detail().empty());
  CHECK(status.workers(0).restarts() == 0);
  // What lay on it is lost, and says so; nothing else is.
  for (const Tensor* tensor : {&lost, &lostToo}) {
    const absl::Status error = add(*tensor, *tensor).get().wait(kDeadline).status();
    CAPTURE(message(error));
    CHECK(failureKind(error) == FailureKind::kTensorLost);
    CHECK(absl::StrContains(error.message(), absl::StrCat("worker 1 was lost, pid ", victim)));
    CHECK(absl::StrContains(error.message(), "SIGKILL"));
  }
  CHECK(kept.get().wait(kDeadline).ok());
  session->synchronize().wait(kDeadline).IgnoreError();  // of what was in flight, unless a value has told of it
  CHECK(session->synchronize().wait(kDeadline).ok());
  // All meshes serve as before, known plans and new ones, collectives and random numbers.
  CHECK(sumOfOnes(*session).value_or(0) == 8);
  for (const Mesh* mesh : {&session->mesh(), &*own}) {
    const auto value = sharded(*session, *mesh).get().wait(kDeadline);
    REQUIRE(value.ok());
    CHECK(value->values<float>()->back() == 5);
  }
  CHECK(eventually([&] { return session->synchronize().wait(kDeadline).ok(); }, kDeadline));
  CHECK(sumOfOnes(*daemon.connect()).value_or(0) == 8);
}

TEST_CASE("who has been told of a loss by a future is not told again, who has not is told once") {
  DaemonFixture daemon({.flags = kSoon});
  const auto session = daemon.connect();
  const bool waits = GENERATE(true, false);
  CAPTURE(waits);
  const Tensor x = sharded(*session, session->mesh());
  REQUIRE(x.get().wait(kDeadline).ok());
  REQUIRE(::kill(static_cast<pid_t>(daemon.status().workers(1).pid()), SIGSTOP) == 0);
  std::vector<Future<HostTensor>> values;
  for (int i = 0; waits && i < 20; ++i) values.push_back(call("aten::sum", {x}).get());
  if (!waits) call("aten::sum", {x}).redistribute({Placement::replicate()});
  REQUIRE(eventually([&] { return daemon.status().operators_in_flight() > 0; }, seconds(5)));
  killWorker(daemon, 1);
  for (const Future<HostTensor>& value : values) CHECK_FALSE(value.wait(kDeadline).ok());
  REQUIRE(session->awaitWorkers().wait(kDeadline).ok());
  int told = 0;
  while (told < 10 && !session->synchronize().wait(kDeadline).ok()) ++told;
  CHECK(told == (waits ? 0 : 1));
  CHECK(daemon.status().unobserved_errors() == 0);
}

TEST_CASE("a mesh that nobody used while its worker was lost serves as well afterwards") {
  DaemonFixture daemon({.flags = kSoon});
  auto before = daemon.connect();
  const auto first = before->mesh({1, 0});
  REQUIRE(first.ok());
  REQUIRE(sharded(*before, *first).get().wait(kDeadline).ok());
  before.reset();
  killWorker(daemon, 1);
  REQUIRE(eventually([&] { return daemon.status().workers(1).restarts() == 1 && isHealthy(daemon); }, kDeadline));
  const auto session = daemon.connect();
  const auto again = session->mesh({1, 0});
  REQUIRE(again.ok());
  const auto value = sharded(*session, *again).get().wait(kDeadline);
  INFO(message(value.status()));
  CHECK(value.ok());
}

TEST_CASE("random numbers are the same on all ranks after a restart, and begin anew") {
  DaemonFixture daemon({.flags = kSoon});
  const auto session = daemon.connect();
  const auto draw = [&] { return session->call("aten::rand", {Sizes{3}}, {.mesh = session->mesh()}); };
  const auto first = draw().get().wait(kDeadline);
  REQUIRE(first.ok());
  REQUIRE(draw().get().wait(kDeadline).ok());
  killWorker(daemon, 0);
  REQUIRE(eventually([&] { return daemon.status().workers(0).restarts() == 1 && isHealthy(daemon); }, kDeadline));
  const Tensor again = draw();
  std::array<std::vector<float>, 2> parts;
  for (Rank rank = 0; rank < 2; ++rank) {
    const auto part = again.getLocal(rank).wait(kDeadline);
    REQUIRE(part.ok());
    const auto values = *part->values<float>();
    parts[static_cast<std::size_t>(rank)] = {values.begin(), values.end()};
  }
  CHECK(parts[0] == parts[1]);
  const auto before = *first->values<float>();
  CHECK(parts[0] == std::vector<float>(before.begin(), before.end()));
}

TEST_CASE(
    "sessions and meshes without the lost worker go on undisturbed, with collectives in flight") {  // monarch#2835
  DaemonFixture daemon({.workers = 4, .flags = kSoon});
  const auto session = daemon.connect();
  const auto mesh = session->mesh({0, 2});
  REQUIRE(mesh.ok());
  std::atomic<bool> done{false};
  absl::Status status;
  std::int64_t rounds = 0;
  std::thread work([&] {
    const Tensor x = sharded(*session, *mesh);
    while (!done && status.ok()) {
      Tensor y = x;
      for (int i = 0; i < 50; ++i)
        y = add(y.redistribute({Placement::replicate()}).redistribute({Placement::shard(0)}), x);
      const auto value = y.get().wait(kDeadline);
      status = value.status();
      if (value.ok() && value->values<float>()->back() != 5 * 51) status = absl::InternalError("a wrong value");
      ++rounds;
    }
  });
  const auto other = daemon.connect();
  for (std::uint32_t round = 1; round <= 4; ++round) {
    const Rank victim = round % 2 == 0 ? 1 : 3;
    killWorker(daemon, victim);
    CHECK(eventually([&] { return daemon.status().workers(victim).restarts() >= (round + 1) / 2 && isHealthy(daemon); },
                     kDeadline));
    CHECK(other->awaitWorkers().wait(kDeadline).ok());
    CHECK(sumOfOnes(*other).value_or(0) == 8);
  }
  done = true;
  work.join();
  INFO(message(status));
  CHECK(status.ok());
  CHECK(rounds > 4);
}

TEST_CASE("all workers at once are replaced, too") {
  DaemonFixture daemon({.workers = 3, .flags = kSoon});
  const auto session = daemon.connect();
  REQUIRE(sumOfOnes(*session).ok());
  for (Rank rank = 0; rank < 3; ++rank) killWorker(daemon, rank);
  const auto allBack = [&] {
    const v1::StatusReply status = daemon.status();
    return std::all_of(status.workers().begin(), status.workers().end(),
                       [](const auto& w) { return w.restarts() == 1; });
  };
  REQUIRE(eventually(allBack, kDeadline));
  REQUIRE(session->awaitWorkers().wait(kDeadline).ok());
  CHECK(sumOfOnes(*session).value_or(0) == 8);
}

TEST_CASE("a crash loop ends in a state that says so; the rest goes on") {
  DaemonFixture daemon({.flags = {"--workers.restart_delay", "20ms", "--workers.restart_limit", "1"}});
  const auto session = daemon.connect();
  killWorker(daemon, 1);
  REQUIRE(session->awaitWorkers().wait(kDeadline).ok());
  REQUIRE(eventually([&] { return daemon.status().workers(1).restarts() == 1 && isHealthy(daemon); }, kDeadline));
  killWorker(daemon, 1);
  REQUIRE(eventually([&] { return daemon.status().workers(1).state() == "failed"; }, kDeadline));
  const absl::Status failed = session->awaitWorkers().wait(kDeadline);
  CAPTURE(message(failed));
  CHECK(failureKind(failed) == FailureKind::kWorkerLost);
  CHECK(absl::StrContains(failed.message(), "given up after 1 restarts"));
  CHECK(absl::StrContains(failed.message(), "none is started in its place"));
  CHECK(daemon.status().health() == v1::HEALTH_DEGRADED);
  const ProgramResult shown =
      runProgram({binFolder() + "/dtorchctl", "--socket", daemon.socket(), "status"}, seconds(20));
  CHECK(shown.exitCode == 1);
  CHECK(absl::StrContains(shown.output, "failed"));
  const auto alone = session->mesh({0});
  REQUIRE(alone.ok());
  CHECK(sharded(*session, *alone).get().wait(kDeadline).ok());
}

TEST_CASE("a silent worker is waited for, then killed and replaced") {
  DaemonFixture daemon({.flags = {"--workers.restart_delay", "20ms", "--heartbeat.interval", "100ms",
                                  "--heartbeat.silent_after", "1s", "--worker.silent_kill", "3s"}});
  const auto session = daemon.connect();
  REQUIRE(sumOfOnes(*session).ok());
  const auto start = Clock::now();
  killWorker(daemon, 1, SIGSTOP);
  const Future<HostTensor> pending = sharded(*session, session->mesh()).get();
  CHECK(eventually([&] { return daemon.status().workers(1).state() == "silent"; }, seconds(2)));
  const absl::Status error = pending.wait(kDeadline).status();
  CAPTURE(message(error));
  CHECK(Clock::now() - start > std::chrono::milliseconds(2700));
  CHECK(Clock::now() - start < seconds(5));
  CHECK(failureKind(error) == FailureKind::kWorkerLost);
  CHECK(absl::StrContains(error.message(), "it had sent no heartbeat for"));
  REQUIRE(session->awaitWorkers().wait(kDeadline).ok());
  CHECK(sumOfOnes(*session).value_or(0) == 8);
}

TEST_CASE("a worker that is lost while it starts is replaced like another") {
  DaemonFixture daemon({.flags = kSoon});
  const auto session = daemon.connect();
  killWorker(daemon, 1);
  const auto starts = [&] {
    const v1::StatusReply status = daemon.status();
    return status.workers(1).state() == "starting" && status.workers(1).pid() > 0;
  };
  REQUIRE(eventually(starts, kDeadline));
  killWorker(daemon, 1);
  REQUIRE(eventually([&] { return daemon.status().workers(1).restarts() == 2 && isHealthy(daemon); }, kDeadline));
  CHECK(sumOfOnes(*session).value_or(0) == 8);
}

}  // namespace dtorch
