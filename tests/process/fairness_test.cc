// Several sessions on the same workers: one that floods them delays the others by a bounded time.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "client/cpp/session.h"
#include "tests/catch.h"
#include "tests/process/daemon_fixture.h"

namespace dtorch {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;
using Sizes = std::vector<std::int64_t>;
constexpr auto kDeadline = std::chrono::seconds(100);

struct Flood {
  double took = 0;
  std::vector<double> roundTrips;  // of another session, one after the other, while it lasted
};

// Calls `name` of two tensors of this shape so often, without a wait.
Flood flood(const DaemonFixture& daemon, const std::string& name, const Sizes& shape, int count) {
  const auto flooder = daemon.connect();
  const auto other = daemon.connect();
  const Tensor x = flooder->call("aten::ones", {shape});
  REQUIRE(flooder->call(name, {x, x}).get().wait(kDeadline).ok());
  const Tensor y = other->call("aten::ones", {Sizes{8}});
  const auto roundTrip = [&] {
    const auto start = Clock::now();
    REQUIRE(other->call("aten::neg", {y}).get().wait(kDeadline).ok());
    return Seconds(Clock::now() - start).count();
  };
  roundTrip();  // planned before it counts
  Flood result;
  const auto start = Clock::now();
  Tensor last = x;
  for (int i = 0; i < count; ++i) last = flooder->call(name, {x, x});
  const auto end = last.get();
  while (!end.poll()) result.roundTrips.push_back(roundTrip());
  REQUIRE(end.wait(kDeadline).ok());
  result.took = Seconds(Clock::now() - start).count();
  return result;
}

void check(const Flood& flood) {
  const double longest = *std::max_element(flood.roundTrips.begin(), flood.roundTrips.end());
  std::cout << "a flood of " << flood.took << " s, meanwhile " << flood.roundTrips.size()
            << " round trips of another session, the longest of " << longest << " s\n";
  // Who is served last is served after all of the flood.
  CHECK(flood.roundTrips.size() >= 5);
  CHECK(longest < flood.took / 2);
}

// Of a product whose rows are shared out among the workers: the least of some runs.
double productTime(int workers) {
  DaemonFixture daemon({.workers = workers});
  const auto session = daemon.connect();
  const Tensor x =
      session->call("aten::ones", {Sizes{1024, 1024}}, {.mesh = session->mesh(), .placements = {Placement::shard(0)}});
  const Tensor w = session->call("aten::ones", {Sizes{1024, 1024}});
  double least = 1e9;
  for (int run = 0; run < 7; ++run) {
    const auto start = Clock::now();
    Tensor y = x;
    for (int i = 0; i < 10; ++i) y = session->call("aten::mm", {x, w});
    REQUIRE(session->call("aten::sum", {y}).get().wait(kDeadline).ok());
    least = std::min(least, Seconds(Clock::now() - start).count());
  }
  return least;
}

// torchtitan#4031, pytorch#22260
TEST_CASE("more workers than cores do the same work in little more time") {
  const auto cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  const double asMany = productTime(cores);
  const double twiceAsMany = productTime(2 * cores);
  std::cout << "10 products of 1024 x 1024: " << asMany << " s on " << cores << " workers, " << twiceAsMany << " s on "
            << 2 * cores << "\n";
  CHECK(twiceAsMany < 1.3 * asMany);
}

TEST_CASE("a flood of slow kernels starves nobody") {
  DaemonFixture daemon;
  check(flood(daemon, "aten::mm", {384, 384}, 1000));
}

TEST_CASE("a flood of small operators starves nobody") {
  DaemonFixture daemon;
  check(flood(daemon, "aten::add.Tensor", {8}, 400'000));
}

}  // namespace
}  // namespace dtorch
