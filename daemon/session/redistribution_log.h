#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "core/ids.h"
#include "daemon/placement/planner.h"
#include "daemon/session/definitions.h"
#include "dtorch/v1/client.pb.h"

namespace dtorch {

/// What a session's calls have redistributed, counted by call site.
///
/// Thread: the controller loop's.
class RedistributionLog {
 public:
  /// Of one run of `plan` at `site`.
  void add(const PlannedOperator& plan, std::uint32_t site, const Definitions& definitions) {
    if (!plan.redistributions.empty() || !plan.innerMoves.empty()) count(plan, site, definitions);
  }
  /// Beyond some thousands of different ones, new ones count together as "others", with all their bytes.
  v1::RedistributionList list();
  void forget();
  /// How many of them calls have made of their own accord, to have their inputs where they take them.
  std::uint64_t implicit() const { return implicit_; }

 private:
  struct Entry {
    std::string op;
    std::string site;
    std::vector<Redistribution> redistributions;
    std::vector<Redistribution> innerMoves;
    std::uint64_t count = 0;
  };
  // What tells one from another: different plans and numbers of sites may look the same.
  using Key = std::tuple<std::string, std::string, bool, std::uint32_t, std::string, std::string, double>;
  struct Told {
    Redistribution moved;
    std::uint64_t count = 0;
  };
  void count(const PlannedOperator& plan, std::uint32_t site, const Definitions& definitions);
  void fold();

  absl::flat_hash_map<std::pair<PlanId, std::uint32_t>, Entry> entries_;  // since the last fold()
  std::map<Key, Told> told_;
  Told others_;
  std::uint64_t implicit_ = 0;
};

}  // namespace dtorch
