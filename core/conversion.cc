#include "core/conversion.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/shard.h"

namespace dtorch {
namespace {

using Cost = double;
/// A step that moves next to nothing costs as much as moving this many elements: fewer steps win.
constexpr Cost kExchangeCost = 4096;
/// A local copy against the same elements moved between ranks.
constexpr Cost kLocalShare = 0.1;

class ConversionPlanner {
 public:
  ConversionPlanner(const std::vector<std::int64_t>& shape, const DeviceMesh& mesh, const Placements& from,
                    const Placements& to)
      : shape_(shape), mesh_(mesh) {
    for (const Placements* side : {&from, &to}) {
      for (const Placement& p : *side) {
        if (std::find(choices_.begin(), choices_.end(), p) == choices_.end()) choices_.push_back(p);
      }
    }
  }

  /// Whether mesh dimension `m` may go from `before[m]` to `to` by itself.
  static bool allowed(const Placements& before, std::size_t m, const Placement& to) {
    const Placement& from = before[m];
    if (from == to || (from.isPartial() && to.isPartial())) return false;
    // avg has no neutral element that stands for "nothing here", so a shard cannot become one of its terms.
    if (from.isShard() && to.isPartial() && to.reduceOp() == ReduceOp::kAvg) return false;
    for (std::size_t inner = m + 1; inner < before.size(); ++inner) {
      for (const Placement& p : {from, to}) {
        if (p.isShard() && before[inner].isShard(p.dim())) return false;
        if (p.isPartial() && before[inner].isPartial() && before[inner] != p) return false;
      }
    }
    return true;
  }

  Cost cost(const Placements& before, std::size_t m, const Placement& to) const {
    Placements after = before;
    after[m] = to;
    const Cost there = elements(after);
    const Placement& from = before[m];
    if (from.isReplicate() || to.isPartial()) return 1 + kLocalShare * there;
    return kExchangeCost + received(before, m, to);
  }

  /// Elements that a rank receives.
  Cost received(const Placements& before, std::size_t m, const Placement& to) const {
    const Placement& from = before[m];
    if (from.isReplicate() || to.isPartial()) return 0;
    Placements after = before;
    after[m] = to;
    const auto extent = static_cast<Cost>(mesh_.shape()[m]);
    const Cost others = (extent - 1) / extent;
    if (from.isPartial()) return elements(before) * others * (to.isReplicate() ? 2 : 1);
    return elements(after) * others;
  }

  ConversionStep step(const Placements& before, std::size_t m, const Placement& to) const {
    return {static_cast<int>(m), before[m], to, before, received(before, m, to)};
  }

  std::vector<ConversionStep> shortest(const Placements& from, const Placements& to) const {
    struct Reached {
      Cost cost = 0;
      Placements previous;
      std::size_t meshDim = 0;
    };
    using Entry = std::tuple<Cost, std::uint64_t, Placements>;  // the number breaks ties alike on every rank
    const auto later = [](const Entry& a, const Entry& b) {
      return std::tie(std::get<0>(a), std::get<1>(a)) > std::tie(std::get<0>(b), std::get<1>(b));
    };
    std::priority_queue<Entry, std::vector<Entry>, decltype(later)> queue(later);
    absl::flat_hash_map<Placements, Reached> reached;
    std::uint64_t number = 0;
    reached[from] = {};
    queue.emplace(0, number, from);
    while (!queue.empty()) {
      const auto [at, order, state] = queue.top();
      queue.pop();
      if (state == to) break;
      if (at > reached[state].cost) continue;
      for (std::size_t m = 0; m < state.size(); ++m) {
        for (const Placement& choice : choices_) {
          if (!allowed(state, m, choice)) continue;
          Placements next = state;
          next[m] = choice;
          const Cost total = at + cost(state, m, choice);
          const auto [it, isNew] = reached.try_emplace(next);
          if (!isNew && it->second.cost <= total) continue;
          it->second = {total, state, m};
          queue.emplace(total, ++number, std::move(next));
        }
      }
    }
    std::vector<ConversionStep> steps;
    if (!reached.contains(to)) return steps;
    for (Placements state = to; state != from;) {
      const Reached& how = reached[state];
      steps.push_back(step(how.previous, how.meshDim, state[how.meshDim]));
      state = how.previous;
    }
    std::reverse(steps.begin(), steps.end());
    return steps;
  }

  void addReplicate() {
    if (std::find(choices_.begin(), choices_.end(), Placement::replicate()) == choices_.end()) {
      choices_.push_back(Placement::replicate());
    }
  }

 private:
  /// Of the largest local tensor, so that all ranks agree.
  Cost elements(const Placements& placements) const {
    Cost count = 1;
    for (std::size_t d = 0; d < shape_.size(); ++d) {
      std::int64_t extent = shape_[d];
      for (std::size_t m = 0; m < placements.size(); ++m) {
        if (placements[m].isShard(static_cast<int>(d))) extent = shardRange(extent, mesh_.shape()[m], 0).length;
      }
      count *= static_cast<Cost>(extent);
    }
    return count;
  }

  const std::vector<std::int64_t>& shape_;
  const DeviceMesh& mesh_;
  std::vector<Placement> choices_;
};

}  // namespace

const char* ConversionStep::collective() const {
  if (!communicates()) return nullptr;
  if (from.isPartial()) return to.isReplicate() ? "all_reduce" : "reduce_scatter";
  return to.isReplicate() ? "all_gather" : "all_to_all";
}

absl::StatusOr<std::vector<ConversionStep>> planConversion(const std::vector<std::int64_t>& shape,
                                                           const DeviceMesh& mesh, const Placements& from,
                                                           const Placements& to) {
  for (const Placements* side : {&from, &to}) {
    auto normal = normalize(*side, mesh.dims(), static_cast<int>(shape.size()));
    if (!normal.ok()) return normal.status();
    if (*normal != *side) return absl::InvalidArgumentError(absl::StrCat(toString(*side), " has negative dims"));
  }
  if (from == to) return std::vector<ConversionStep>{};
  ConversionPlanner planner(shape, mesh, from, to);
  // Most conversions change one mesh dimension, and then nothing beats doing just that.
  std::vector<std::size_t> changed;
  for (std::size_t m = 0; m < from.size(); ++m) {
    if (from[m] != to[m]) changed.push_back(m);
  }
  if (changed.size() == 1 && ConversionPlanner::allowed(from, changed[0], to[changed[0]])) {
    const std::size_t m = changed[0];
    return std::vector<ConversionStep>{planner.step(from, m, to[m])};
  }
  planner.addReplicate();
  std::vector<ConversionStep> steps = planner.shortest(from, to);
  if (steps.empty()) {
    return absl::UnimplementedError(
        absl::StrCat("no conversion from ", toString(from), " to ", toString(to), " on mesh ", mesh.toString()));
  }
  return steps;
}

bool isReducible(DType dtype, ReduceOp op) {
  const bool real = isFloatingPoint(dtype);
  if (real && elementSize(dtype) == 1) return false;
  if (op == ReduceOp::kAvg) return real || isComplex(dtype);
  return (op != ReduceOp::kMin && op != ReduceOp::kMax) || !isComplex(dtype);
}

absl::Status checkReducible(const Placements& placements, DType dtype) {
  for (const Placement& placement : placements) {
    if (!placement.isPartial() || isReducible(dtype, placement.reduceOp())) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name(dtype), " tensors are never ", placement.toString(), ": that cannot be reduced"));
  }
  return absl::OkStatus();
}

}  // namespace dtorch
