#include "daemon/executor/plan_costs.h"

#include <vector>

#include "tests/catch.h"

namespace dtorch {
namespace {

using Seconds = PlanCosts::Seconds;
constexpr Seconds kUnknown(1e-3);

// These plans, of which each run takes as `truth` says.
void run(PlanCosts* costs, const std::vector<PlanId>& plans, const std::vector<double>& truth) {
  Seconds took(0);
  for (const PlanId plan : plans) took += Seconds(truth[plan]);
  costs->learn(plans, took);
}

TEST_CASE("a plan takes what it took") {
  PlanCosts costs(kUnknown);
  CHECK(costs.of(1) == kUnknown);
  CHECK(costs.of(1'000'000) == kUnknown);
  costs.learn(std::vector<PlanId>(10, 3), Seconds(0.5));
  CHECK(costs.of(3).count() == Approx(0.05));
  CHECK(costs.of(2) == kUnknown);
  // Other times than before are believed by and by.
  for (int i = 0; i < 20; ++i) costs.learn({3, 3}, Seconds(0.004));
  CHECK(costs.of(3).count() == Approx(0.002).epsilon(0.01));
}

TEST_CASE("a plan that was held up by others is set right by runs of its own") {
  PlanCosts costs(kUnknown);
  const std::vector<double> truth = {0, 0.1, 5e-5};
  std::vector<PlanId> mixed(101, 2);
  mixed[50] = 1;
  run(&costs, mixed, truth);
  CHECK(costs.of(2).count() > 5e-4);
  for (int i = 0; i < 30; ++i) {
    run(&costs, mixed, truth);
    run(&costs, std::vector<PlanId>(100, 2), truth);
  }
  CHECK(costs.of(2).count() == Approx(5e-5).epsilon(0.5));
  CHECK(costs.of(1).count() == Approx(0.1).epsilon(0.2));
}

TEST_CASE("times too short to be told make a plan cheaper, never dearer") {
  PlanCosts costs(kUnknown);
  costs.learn({1}, Seconds(1.5e-3));  // its report may have come late
  CHECK(costs.of(1) == kUnknown);
  costs.learn(std::vector<PlanId>(100, 1), Seconds(1.5e-3));
  CHECK(costs.of(1).count() == Approx(1.5e-5));
  costs.learn({1}, Seconds(0));
  CHECK(costs.of(1).count() == Approx(1.5e-5));
  costs.learn(std::vector<PlanId>(1000, 1), Seconds(0));
  CHECK(costs.of(1).count() == Approx(1e-6));
}

TEST_CASE("plans that will not be run any more are forgotten, and may still come back from the workers") {
  PlanCosts costs(kUnknown);
  costs.learn({1, 2, 3}, Seconds(0.3));
  costs.forget(3);
  CHECK(costs.of(2) == kUnknown);
  CHECK(costs.of(3).count() == Approx(0.1));
  costs.learn({2, 3}, Seconds(0.2));
  CHECK(costs.of(2) == kUnknown);
  costs.forget(1'000'000);
  CHECK(costs.of(3) == kUnknown);
  CHECK(costs.of(1'000'000) == kUnknown);
}

}  // namespace
}  // namespace dtorch
