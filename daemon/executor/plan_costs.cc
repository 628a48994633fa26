#include "daemon/executor/plan_costs.h"

#include <algorithm>

namespace dtorch {
namespace {

// A report may come so much later than what it reports: shorter times are not told apart.
constexpr double kReportDelay = 1e-3;
constexpr double kTold = 2 * kReportDelay;
constexpr double kLeast = 1e-6;
// How far one lesson goes.
constexpr double kWeight = 0.5;

}  // namespace

void PlanCosts::learn(absl::Span<const PlanId> plans, Seconds took) {
  double predicted = 0;
  for (const PlanId plan : plans) predicted += of(plan).count();
  if (predicted <= 0) return;
  ++lesson_;
  const double ratio = took.count() / predicted;
  const double most = std::max(took.count(), kReportDelay) / static_cast<double>(plans.size());
  for (const PlanId plan : plans) {
    if (plan < first_) continue;  // forgotten while it ran
    const std::uint64_t index = plan - first_;
    if (index >= entries_.size()) entries_.resize(index + 1, {unknown_});
    Entry& entry = entries_[index];
    if (entry.lesson == lesson_) continue;
    const bool first = entry.lesson == 0;
    entry.lesson = lesson_;
    if (took.count() < kTold) {
      entry.seconds = std::min(entry.seconds, std::max(most, kLeast));
    } else {
      entry.seconds = std::max(entry.seconds * (1 + (first ? 1 : kWeight) * (ratio - 1)), kLeast);
    }
  }
}

void PlanCosts::forget(PlanId below) {
  if (below <= first_) return;
  const std::uint64_t gone = std::min<std::uint64_t>(below - first_, entries_.size());
  entries_.erase(entries_.begin(), entries_.begin() + static_cast<std::ptrdiff_t>(gone));
  first_ = below;
}

}  // namespace dtorch
