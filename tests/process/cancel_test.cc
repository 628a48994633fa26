// Calls with a time limit, and calls that are cancelled: who is told, how soon, and what is left.
#include <signal.h>

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
using std::chrono::milliseconds;
using std::chrono::seconds;
constexpr auto kDeadline = seconds(60);

Tensor square(Session& session, const Mesh& mesh) {
  return session.call("aten::ones", {Sizes{900, 900}}, {.mesh = mesh});
}
/// Some seconds of work, in operators of some tens of milliseconds.
Tensor slow(Session& session, const Tensor& start, int operators = 300) {
  Tensor x = start;
  for (int i = 0; i < operators; ++i) x = session.call("aten::mm", {x, start});
  return x;
}

std::string message(const absl::Status& status) { return std::string(status.message()); }

bool isCancelled(const absl::Status& status) { return failureKind(status) == FailureKind::kCancelled; }

}  // namespace

TEST_CASE("what is cancelled ends at once, what has not begun is dropped, and all goes on") {
  DaemonFixture daemon({.flags = {"--heartbeat.interval", "100ms", "--heartbeat.silent_after", "10s"}});
  const auto session = daemon.connect();
  const auto other = daemon.connect();
  const Tensor start = square(*session, session->mesh());
  REQUIRE(session->synchronize().wait(kDeadline).ok());
  const Tensor kept = session->call("aten::mul.Tensor", {start, 2.0});
  REQUIRE(kept.get().wait(kDeadline).ok());
  const Tensor written = session->call("aten::zeros", {Sizes{2}});
  REQUIRE(written.get().wait(kDeadline).ok());
  {
    const Tensor end = slow(*session, start);
    session->call("aten::add_.Tensor", {written, 1.0});
    const Future<HostTensor> value = end.get();
    const Future<void> all = session->synchronize();
    std::this_thread::sleep_for(milliseconds(200));
    CHECK_FALSE(value.poll());
    const auto begin = Clock::now();
    REQUIRE(session->cancel().ok());
    CHECK(isCancelled(value.wait(kDeadline).status()));
    CHECK(isCancelled(all.wait(kDeadline)));
    CHECK(Clock::now() - begin < seconds(1));
    // What comes after the cancel is as ever, once what runs has ended: 300 operators would take many times as long.
    CHECK(sumOfOnes(*session).value_or(0) == 8);
    CHECK(Clock::now() - begin < seconds(3));
    CHECK(isCancelled(end.get().wait(kDeadline).status()));
    CHECK(isCancelled(add(end, end).get().wait(kDeadline).status()));
  }
  // It might have been written to, or not: nobody may take it for either.
  CHECK(isCancelled(written.get().wait(kDeadline).status()));
  CHECK(kept.get().wait(kDeadline).ok());
  CHECK(start.get().wait(kDeadline).ok());
  CHECK(session->synchronize().wait(kDeadline).ok());
  CHECK(sumOfOnes(*other).value_or(0) == 8);
  CHECK(daemon.status().health() == v1::HEALTH_HEALTHY);
  // Two squares and little else.
  const auto held = [&] { return daemon.status().workers(1).tensor_bytes(); };
  CHECK(eventually([&] { return held() < 3 * 900 * 900 * 4; }, seconds(5)));
  CHECK(eventually([&] { return daemon.status().operators_in_flight() == 0; }, seconds(5)));
}

TEST_CASE("a cancel reaches calls that wait on the stream, while a worker stands still") {
  DaemonFixture daemon({.flags = {"--executor.max_operators_in_flight", "1000"}});
  const auto session = daemon.connect();
  const std::vector<std::int64_t> zero = {0, 0, 0};
  const Tensor x = session->put(HostView::of(zero, {3}), session->mesh(), {Placement::shard(0)});
  const Tensor untouched = session->put(HostView::of(zero, {3}), session->mesh(), {Placement::shard(0)});
  REQUIRE(untouched.get().wait(kDeadline).ok());
  const auto stopped = static_cast<pid_t>(daemon.status().workers(1).pid());
  REQUIRE(::kill(stopped, SIGSTOP) == 0);
  std::thread caller([&] {
    for (int i = 0; i < 20000; ++i) session->call("aten::add_.Tensor", {x, 1});
  });
  std::this_thread::sleep_for(milliseconds(300));
  const Future<HostTensor> value = x.get();
  CHECK_FALSE(value.poll());
  const auto begin = Clock::now();
  CHECK(session->cancel().ok());
  CHECK(isCancelled(value.wait(kDeadline).status()));
  CHECK(Clock::now() - begin < seconds(1));
  CHECK(session->cancel().ok());
  REQUIRE(::kill(stopped, SIGCONT) == 0);
  caller.join();
  CHECK(isCancelled(x.get().wait(kDeadline).status()));
  const auto others = untouched.get().wait(kDeadline);
  REQUIRE(others.ok());
  CHECK(others->values<std::int64_t>()->front() == 0);
  CHECK(sumOfOnes(*session).value_or(0) == 8);
}

TEST_CASE("CANCEL-1: collectives that are cancelled at any moment leave their group as it was") {
  DaemonFixture daemon({.workers = 3, .flags = {"--comm.timeout", "20s"}});
  const auto session = daemon.connect();
  const std::vector<float> values = {1, 2, 3, 4, 5, 6, 7};
  for (int round = 0; round < 60; ++round) {
    Tensor x = session->put(HostView::of(values, {7}), session->mesh(), {Placement::shard(0)});
    for (int i = 0; i < 200; ++i) x = x.redistribute({i % 2 == 0 ? Placement::replicate() : Placement::shard(0)});
    const Future<HostTensor> value = x.get();
    std::this_thread::sleep_for(std::chrono::microseconds(round * 100));
    REQUIRE(session->cancel().ok());
    const absl::Status status = value.wait(kDeadline).status();
    CAPTURE(round, message(status));
    REQUIRE((status.ok() || isCancelled(status)));
    REQUIRE(sumOfOnes(*session).value_or(0) == 8);
  }
}

TEST_CASE("a call that is late fails with its time limit, and all that depends on it; nothing else does") {
  DaemonFixture daemon;
  const auto session = daemon.connect();
  const Tensor start = square(*session, session->mesh());
  const Tensor inTime = session->call("aten::mul.Tensor", {start, 2.0}, {.timeout = seconds(30)});
  REQUIRE(inTime.get().wait(kDeadline).ok());
  const Tensor written = session->call("aten::zeros", {Sizes{2}});
  REQUIRE(written.get().wait(kDeadline).ok());
  const Tensor busy = slow(*session, start, 40);
  const auto begin = Clock::now();
  const Tensor late = session->call("aten::add.Tensor", {start, start}, {.timeout = milliseconds(100)});
  const Tensor lateWrite = session->call("aten::add_.Tensor", {written, 1.0}, {.timeout = milliseconds(100)});
  const Future<HostTensor> dependent = add(late, late).get();
  const absl::Status error = dependent.wait(kDeadline).status();
  const auto took = Clock::now() - begin;
  CAPTURE(message(error));
  CHECK(failureKind(error) == FailureKind::kDeadline);
  CHECK(absl::StrContains(error.message(), "it was not done within 100 ms"));
  CHECK(absl::StrContains(error.message(), "aten::add.Tensor"));
  CHECK(absl::StrContains(error.message(), "cancel_test.cc"));
  CHECK(took >= milliseconds(90));
  CHECK(took < milliseconds(700));
  CHECK(failureKind(written.get().wait(kDeadline).status()) == FailureKind::kDeadline);
  CHECK(busy.get().wait(kDeadline).ok());
  CHECK(start.get().wait(kDeadline).ok());
  CHECK(sumOfOnes(*session).value_or(0) == 8);
  CHECK(failureKind(late.get().wait(kDeadline).status()) == FailureKind::kDeadline);
}

TEST_CASE("nobody cancels another session's calls") {
  DaemonFixture daemon;
  const auto session = daemon.connect();
  const auto other = daemon.connect();
  const Tensor end = slow(*other, square(*other, other->mesh()), 5);
  REQUIRE(session->cancel().ok());
  CHECK(end.get().wait(kDeadline).ok());
}

}  // namespace dtorch
