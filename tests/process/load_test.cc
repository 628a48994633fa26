// Full load, slow readers and crowds: memory stays bounded, nothing is lost, status answers.
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/operators.h"
#include "client/cpp/session.h"
#include "tests/catch.h"
#include "tests/process/daemon_fixture.h"

namespace dtorch {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Sizes = std::vector<std::int64_t>;
constexpr auto kDeadline = seconds(120);

std::int64_t residentMiB(std::int64_t pid) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  std::string line;
  while (std::getline(status, line)) {
    if (line.rfind("VmRSS:", 0) == 0) return std::atoll(line.c_str() + 6) / 1024;
  }
  return 0;
}

double inSeconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

// Of a few hundred small calls, one after the other.
double medianRoundTrip(const Tensor& x, int count) {
  std::vector<double> times;
  for (int i = 0; i < count; ++i) {
    const auto begin = Clock::now();
    REQUIRE(call("aten::neg", {x}).get().wait(kDeadline).ok());
    times.push_back(inSeconds(Clock::now() - begin));
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

}  // namespace

// jeromq#238, libzmq#3689, libzmq#4394: a publisher drops what a slow subscriber does not take.
TEST_CASE("a worker that stands still under full load costs time, and nothing else") {
  constexpr int kAdditions = 100'000;
  constexpr auto kStill = seconds(20);
  DaemonFixture daemon({.workers = 3});
  const auto counting = daemon.connect();
  const auto putting = daemon.connect();
  const auto apart = daemon.connect();
  const Mesh both = *counting->mesh({0, 1});
  const std::vector<std::int64_t> zero = {0};
  const Tensor sum = counting->put(HostView::of(zero, {}), both);
  REQUIRE(sum.get().wait(kDeadline).ok());
  const Tensor elsewhere = apart->call("aten::ones", {Sizes{8}}, {.mesh = *apart->mesh({2})});
  medianRoundTrip(elsewhere, 20);  // planned before it counts
  const double before = medianRoundTrip(elsewhere, 200);

  const v1::StatusReply begin = daemon.status();
  const auto stopped = static_cast<pid_t>(begin.workers(1).pid());
  const std::vector<std::int64_t> pids = {daemon.pid(), begin.workers(0).pid(), stopped, begin.workers(2).pid(),
                                          ::getpid()};
  std::vector<std::int64_t> resident;
  for (const std::int64_t pid : pids) resident.push_back(residentMiB(pid));

  std::atomic<int> added = 0;
  std::jthread adder([&] {
    for (; added < kAdditions; ++added) call("aten::add_.Scalar", {sum, 1});
  });
  std::atomic<bool> enough = false;
  std::atomic<int> puts = 0;
  std::jthread putter([&] {
    const std::vector<float> values(1 << 20, 1);
    const Mesh mesh = *putting->mesh({0, 1});
    for (; !enough; ++puts) putting->put(HostView::of(values, {1 << 20}), mesh, {Placement::shard(0)});
  });
  const auto goOn = absl::MakeCleanup([&] {
    enough = true;
    ::kill(stopped, SIGCONT);
  });
  REQUIRE(eventually([&] { return added >= kAdditions / 100; }, kDeadline));
  REQUIRE(::kill(stopped, SIGSTOP) == 0);
  const int addedBefore = added;
  const auto stoppedAt = Clock::now();
  REQUIRE(eventually([&] { return daemon.status().workers(1).state() == "silent"; }, kStill));
  std::cout << addedBefore << " additions were called before the stop, " << added << " soon after\n";
  const double during = medianRoundTrip(elsewhere, 200);
  const int putBefore = puts;  // what buffers there are is full by now
  std::vector<std::int64_t> growth;
  do {
    std::this_thread::sleep_for(milliseconds(200));
    growth.clear();
    for (std::size_t i = 0; i < pids.size(); ++i) growth.push_back(residentMiB(pids[i]) - resident[i]);
    for (const std::int64_t each : growth) CHECK(each < 300);
    const auto asked = Clock::now();
    daemon.status();
    CHECK(Clock::now() - asked < seconds(1));
  } while (Clock::now() - stoppedAt < kStill);
  std::cout << "round trip on another mesh: " << before * 1e6 << " us before, " << during * 1e6
            << " us meanwhile; grown, in MiB: daemon " << growth[0] << ", workers " << growth[1] << " " << growth[2]
            << " " << growth[3] << ", client " << growth[4] << "\n";
  CHECK(during < 10 * before + 20e-3);  // a round trip that waited for the worker would take seconds
  CHECK(puts == putBefore);             // whoever has more for it is held back

  REQUIRE(::kill(stopped, SIGCONT) == 0);
  enough = true;
  REQUIRE(eventually([&] { return added == kAdditions; }, kDeadline));
  for (const Rank rank : {0, 1}) {
    const auto value = sum.getLocal(rank).wait(kDeadline);
    INFO(value.status());
    REQUIRE(value.ok());
    CHECK((*value->values<std::int64_t>())[0] == kAdditions);
  }
  CHECK(daemon.status().workers(1).restarts() == 0);
  CHECK(daemon.status().health() == v1::HEALTH_HEALTHY);
}

TEST_CASE("200 clients, each of which waits: status answers, and all get their values") {
  constexpr int kClients = 200;
  DaemonFixture daemon;
  std::vector<std::shared_ptr<Session>> sessions;
  for (int i = 0; i < kClients; ++i) sessions.push_back(daemon.connect());
  const auto stopped = static_cast<pid_t>(daemon.status().workers(1).pid());
  REQUIRE(::kill(stopped, SIGSTOP) == 0);
  std::atomic<int> right = 0;
  std::atomic<int> waiting = 0;
  std::vector<std::jthread> waiters;
  const auto goOn = absl::MakeCleanup([&] { ::kill(stopped, SIGCONT); });
  for (int i = 0; i < kClients; ++i) {
    waiters.emplace_back([&, i] {
      const std::vector<float> values = {1, 2, 3, static_cast<float>(i)};
      const auto& session = sessions[static_cast<std::size_t>(i)];
      const Tensor x = session->put(HostView::of(values, {4}), session->mesh(), {Placement::shard(0)});
      const auto sum = call("aten::sum", {x}).get();
      ++waiting;
      const auto value = sum.wait(kDeadline);
      if (value.ok() && value->item().value_or(0) == 6 + i) ++right;
    });
  }
  REQUIRE(eventually([&] { return waiting == kClients; }, seconds(20)));
  double longest = 0;
  for (int i = 0; i < 20; ++i) {
    const auto asked = Clock::now();
    CHECK(daemon.status().sessions_size() == kClients);
    longest = std::max(longest, inSeconds(Clock::now() - asked));
    std::this_thread::sleep_for(milliseconds(50));
  }
  std::cout << "the longest answer of status with " << kClients << " waiting clients: " << longest * 1e3 << " ms\n";
  CHECK(longest < 1);
  CHECK(right == 0);
  REQUIRE(::kill(stopped, SIGCONT) == 0);
  for (std::jthread& waiter : waiters) waiter.join();
  CHECK(right == kClients);
  sessions.clear();
  CHECK(eventually([&] { return daemon.status().sessions_size() == 0; }, seconds(10)));
}

TEST_CASE("200 waits of one session") {
  constexpr int kWaiters = 200;
  DaemonFixture daemon;
  const auto session = daemon.connect();
  const std::vector<float> values = {1, 2};
  const Tensor x = session->put(HostView::of(values, {2}), session->mesh(), {Placement::shard(0)});
  REQUIRE(x.get().wait(kDeadline).ok());
  const auto stopped = static_cast<pid_t>(daemon.status().workers(0).pid());
  REQUIRE(::kill(stopped, SIGSTOP) == 0);
  std::atomic<int> right = 0;
  std::atomic<int> waiting = 0;
  std::vector<std::jthread> waiters;
  const auto goOn = absl::MakeCleanup([&] { ::kill(stopped, SIGCONT); });
  for (int i = 0; i < kWaiters; ++i) {
    waiters.emplace_back([&, i] {
      const auto sum = call("aten::add.Scalar", {x, i}).get();
      ++waiting;
      const auto value = sum.wait(kDeadline);
      if (value.ok() && (*value->values<float>())[1] == static_cast<float>(2 + i)) ++right;
    });
  }
  REQUIRE(eventually([&] { return waiting == kWaiters && daemon.status().sessions(0).futures() > 0; }, seconds(10)));
  const auto asked = Clock::now();
  CHECK(daemon.status().sessions_size() == 1);
  CHECK(Clock::now() - asked < seconds(1));
  REQUIRE(::kill(stopped, SIGCONT) == 0);
  for (std::jthread& waiter : waiters) waiter.join();
  CHECK(right == kWaiters);
}

}  // namespace dtorch
