// The tools of docs/numerics.md from C++; tests/python/numerics_test.py has the same, and more, from Python.
#include <cmath>
#include <string>
#include <vector>

#include "client/cpp/diagnostics.h"
#include "client/cpp/operator_error.h"
#include "client/cpp/operators.h"
#include "client/cpp/tensor_checker.h"
#include "tests/catch.h"
#include "tests/process/daemon_fixture.h"

namespace dtorch {
namespace {

using Catch::Matchers::Contains;
constexpr std::int64_t kMiB = 1 << 20;

TEST_CASE("memory of each rank, now and at its peak") {
  DaemonFixture daemon;
  const auto session = daemon.connect();
  resetPeakMemory(*session);
  const auto before = memoryStatistics(*session);
  REQUIRE(before.ok());
  REQUIRE(before->size() == 2);
  {
    // 8 MiB on each of two ranks, and as much for the sum.
    FactoryOptions rows;
    rows.placements = {Placement::shard(0)};
    const Tensor x = ones(*session, {4 * kMiB}, rows);
    const auto held = memoryStatistics(*session);
    REQUIRE(held.ok());
    for (std::size_t rank = 0; rank < 2; ++rank) {
      CHECK((*held)[rank].allocatedBytes >= (*before)[rank].allocatedBytes + 8 * kMiB);
      CHECK((*held)[rank].allocatedBytes < (*before)[rank].allocatedBytes + 9 * kMiB);
      CHECK((*held)[rank].blocks > (*before)[rank].blocks);
    }
    REQUIRE(sum(add(x, x)).get().get().ok());
  }
  const auto after = memoryStatistics(*session);
  REQUIRE(after.ok());
  CHECK((*after)[1].allocatedBytes < (*before)[1].allocatedBytes + kMiB);
  CHECK((*after)[1].peakAllocatedBytes >= (*before)[1].allocatedBytes + 16 * kMiB);
  emptyCache(*session);
  resetPeakMemory(*session);
  const auto reset = memoryStatistics(*session, *session->mesh({1}));
  REQUIRE(reset.ok());
  REQUIRE(reset->size() == 1);
  CHECK((*reset)[0].peakAllocatedBytes < (*before)[1].allocatedBytes + kMiB);
  CHECK((*reset)[0].reservedBytes < (*after)[1].reservedBytes);
}

TEST_CASE("a range is in the log from its begin to its end") {
  DaemonFixture daemon({.flags = {"--log.level", "debug"}});
  const auto session = daemon.connect();
  {
    const RangeScope step(*session, "step");
    mark(*session, "here");
  }
  REQUIRE(session->synchronize().get().ok());
  daemon.stop();
  CHECK_THAT(daemon.log(), Contains("range step begins") && Contains("mark here") && Contains("range step took"));
}

TEST_CASE("a session that validates hears of a NaN from the operator that made it") {
  DaemonFixture daemon;
  const auto session = Session::connect({.address = daemon.socket(), .validate = true});
  REQUIRE(session.ok());
  const std::vector<float> values = {1, -1};
  const Tensor x = (*session)->put(HostView::of(values, {2}), (*session)->mesh(), {Placement::shard(0)});
  const auto result = exp(log(x)).get().get();
  CHECK(result.status().code() == absl::StatusCode::kOutOfRange);
  const auto error = operatorError(result.status());
  REQUIRE(error.has_value());
  CHECK(error->operatorName == "aten::log");
  CHECK(error->rank == 1);
  CHECK_THAT(error->site, Contains("numerics_test.cc"));
}

TEST_CASE("tensors are checked by tag wherever they lie") {
  DaemonFixture daemon;
  const auto session = daemon.connect();
  const std::vector<float> values = {1, 2, 3};
  const Tensor x = session->put(HostView::of(values, {3}), session->mesh(), {Placement::shard(0)});
  TensorChecker checker;
  REQUIRE(checker.record("x", x).ok());
  const auto same = checker.check("x", x.redistribute({Placement::replicate()}));
  REQUIRE(same.ok());
  CHECK(same->ok());
  const auto other = checker.check("x", mul(x, 2.0));
  REQUIRE(other.ok());
  CHECK(other->mismatches == 3);
  CHECK(other->greatestDifference == 3);
  CHECK(checker.check("x", call("aten::mm", {x, x})).status().code() == absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace dtorch
