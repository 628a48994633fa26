#include "worker/cancel_gate.h"

#include <latch>
#include <random>
#include <thread>
#include <vector>

#include "tests/catch.h"

namespace dtorch {
namespace {

constexpr StreamKind kCompute = StreamKind::kCompute;
constexpr StreamKind kComm = StreamKind::kCommunication;

}  // namespace

TEST_CASE("CANCEL-1: what has begun somewhere runs everywhere, the rest nowhere") {
  CancelGate gate;
  CHECK_FALSE(gate.begin(kCompute, 1, 10));
  CHECK_FALSE(gate.begin(kComm, 1, 8));
  CHECK_FALSE(gate.holding());
  CHECK(gate.hold(5, 1, 3, 20) == CancelGate::Begun{10, 8});
  CHECK(gate.holding());
  CHECK_FALSE(gate.begin(kCompute, 2, 11));  // another session's goes on
  CHECK_FALSE(gate.begin(kCompute, 1, 21));  // so does a later one
  gate.decide(5, {12, 9});
  CHECK_FALSE(gate.begin(kCompute, 1, 12));  // another rank has begun it
  CHECK(gate.begin(kCompute, 1, 13));
  CHECK_FALSE(gate.begin(kComm, 1, 9));
  CHECK(gate.begin(kComm, 1, 12));
  CHECK(gate.begin(kComm, 1, 20));
  CHECK_FALSE(gate.begin(kComm, 1, 21));
  gate.passed(5);
  CHECK(gate.holding());
  gate.passed(5);
  CHECK_FALSE(gate.holding());
  CHECK_FALSE(gate.begin(kComm, 1, 20));
}

TEST_CASE("of a list of operators only those are held") {
  CancelGate gate;
  gate.hold(1, 1, 3, 9, {3, 6, 9});
  CHECK_FALSE(gate.begin(kCompute, 1, 4));
  gate.decide(1, {4, 0});
  CHECK_FALSE(gate.begin(kCompute, 1, 5));
  CHECK(gate.begin(kCompute, 1, 6));
  CHECK_FALSE(gate.begin(kCompute, 1, 8));
  CHECK(gate.begin(kComm, 1, 3));
}

TEST_CASE("an operator waits until it is decided, or the worker ends") {
  CancelGate gate;
  gate.hold(1, 1, 1, 9);
  bool dropped = false;
  std::thread stream([&] { dropped = gate.begin(kCompute, 1, 5); });
  SECTION("dropped") {
    gate.decide(1, {4, 0});
    stream.join();
    CHECK(dropped);
  }
  SECTION("not dropped") {
    gate.decide(1, {5, 0});
    stream.join();
    CHECK_FALSE(dropped);
  }
  SECTION("the worker ends") {
    gate.stop();
    stream.join();
    CHECK_FALSE(dropped);
  }
}

TEST_CASE("CANCEL-1: ranks that run at their own pace drop the same operators") {
  const unsigned seed = std::random_device{}();
  INFO("seed " << seed);
  constexpr std::size_t kRanks = 3;
  constexpr OperatorNumber kOperators = 3000;
  for (int round = 0; round < 20; ++round) {
    std::array<CancelGate, kRanks> gates;
    std::array<std::vector<bool>, kRanks> dropped;
    std::latch begin(kRanks + 1);
    std::vector<std::thread> streams;
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      streams.emplace_back([&, rank] {
        std::mt19937 random(seed + static_cast<unsigned>(rank) + static_cast<unsigned>(round));
        begin.arrive_and_wait();
        for (OperatorNumber number = 1; number <= kOperators; ++number) {
          dropped[rank].push_back(gates[rank].begin(kCompute, number % 3 == 0 ? 2 : 1, number));
          if (random() % 100 == 0) std::this_thread::yield();
        }
      });
    }
    begin.arrive_and_wait();
    CancelGate::Begun furthest{};
    for (CancelGate& gate : gates) {
      const CancelGate::Begun begun = gate.hold(1, 1, 1, kOperators - 10);
      for (std::size_t stream = 0; stream < kStreams; ++stream) {
        furthest[stream] = std::max(furthest[stream], begun[stream]);
      }
    }
    for (CancelGate& gate : gates) gate.decide(1, furthest);
    for (std::thread& stream : streams) stream.join();
    for (std::size_t rank = 1; rank < kRanks; ++rank) REQUIRE(dropped[rank] == dropped[0]);
    for (OperatorNumber number = 1; number <= kOperators; ++number) {
      const bool expected = number % 3 != 0 && number > furthest[0] && number <= kOperators - 10;
      REQUIRE(dropped[0][number - 1] == expected);
    }
  }
}

}  // namespace dtorch
