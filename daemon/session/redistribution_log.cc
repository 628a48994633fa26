#include "daemon/session/redistribution_log.h"

#include "daemon/placement/explanation.h"

namespace dtorch {
namespace {

constexpr std::size_t kMaxEntries = 4096;

// Asked for, instead of by a call that wants its inputs elsewhere.
bool isAsked(const std::string& op) { return op == "redistribute" || op == "gradient" || op == "get"; }

}  // namespace

void RedistributionLog::count(const PlannedOperator& plan, std::uint32_t site, const Definitions& definitions) {
  if (!isAsked(plan.wire.name())) implicit_ += plan.redistributions.size();
  if (entries_.size() >= kMaxEntries) fold();
  Entry& entry = entries_[{plan.id, site}];
  if (entry.count++ > 0) return;
  entry.op = plan.wire.name();
  entry.site = definitions.site(site);
  entry.redistributions = plan.redistributions;
  entry.innerMoves = plan.innerMoves;
}

void RedistributionLog::fold() {
  for (const auto& [id, entry] : entries_) {
    for (const bool isInner : {false, true}) {
      for (const Redistribution& moved : isInner ? entry.innerMoves : entry.redistributions) {
        const Key key{entry.op,           entry.site, isInner, moved.input, toString(moved.from),
                      toString(moved.to), moved.bytes};
        if (told_.size() >= kMaxEntries && !told_.contains(key)) {
          others_.moved.bytes += moved.bytes * static_cast<double>(entry.count);
          others_.count = 1;
          continue;
        }
        Told& told = told_[key];
        told.moved = moved;
        told.count += entry.count;
      }
    }
  }
  entries_.clear();
}

v1::RedistributionList RedistributionLog::list() {
  fold();
  v1::RedistributionList all;
  const auto add = [&](const std::string& op, const std::string& site, bool isInner, const Told& told) {
    v1::LoggedRedistribution* added = all.add_redistributions();
    added->set_operator_name(op);
    added->set_site(site);
    added->set_inner(isInner);
    toWire(told.moved, added->mutable_redistribution());
    added->set_count(told.count);
  };
  for (const auto& [key, told] : told_) add(std::get<0>(key), std::get<1>(key), std::get<2>(key), told);
  if (others_.count > 0) add("others", "", false, others_);
  return all;
}

void RedistributionLog::forget() {
  entries_.clear();
  told_.clear();
  others_ = {};
}

}  // namespace dtorch
