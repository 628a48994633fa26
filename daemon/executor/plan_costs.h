#pragma once
#include <chrono>
#include <cstdint>
#include <deque>

#include "absl/types/span.h"
#include "core/ids.h"

namespace dtorch {

/// How long the workers take to run a plan, as far as their reports tell: learned from runs of plans and the time that
/// they took together. It is shared among them in proportion to what they were thought to take, so that those which a
/// plan has for itself set it right.
///
/// Thread: the controller loop's.
class PlanCosts {
 public:
  using Seconds = std::chrono::duration<double>;

  /// `unknown`: of a plan that has not been run yet.
  explicit PlanCosts(Seconds unknown) : unknown_(unknown.count()) {}

  Seconds of(PlanId plan) const {
    const std::uint64_t index = plan - first_;
    return Seconds(index < entries_.size() ? entries_[index].seconds : unknown_);
  }
  /// These plans, one entry a run, took so long together.
  void learn(absl::Span<const PlanId> plans, Seconds took);
  /// Plans below this number will not be run any more.
  void forget(PlanId below);

 private:
  struct Entry {
    double seconds;
    std::uint64_t lesson = 0;  // the last that it took part in; 0: none
  };
  const double unknown_;
  PlanId first_ = 1;  // plans are numbered one after the other
  std::deque<Entry> entries_;
  std::uint64_t lesson_ = 0;
};

}  // namespace dtorch
