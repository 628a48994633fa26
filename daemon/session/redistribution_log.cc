#include "daemon/session/redistribution_log.h"

#include "daemon/placement/explanation.h"

namespace dtorch {
namespace {

constexpr std::size_t kMaxEntries = 4096;

}  // namespace

void RedistributionLog::add(const std::string& op, const std::string& site,
                            const std::vector<Redistribution>& redistributions) {
  for (const Redistribution& moved : redistributions) {
    ++count_;
    Key key{op, site, moved.input, toString(moved.from), toString(moved.to)};
    if (entries_.size() >= kMaxEntries && !entries_.contains(key)) std::get<1>(key).clear();
    if (entries_.size() >= 2 * kMaxEntries && !entries_.contains(key)) continue;
    Entry& entry = entries_[std::move(key)];
    entry.redistribution = moved;
    ++entry.count;
  }
}

v1::RedistributionList RedistributionLog::list() const {
  v1::RedistributionList all;
  for (const auto& [key, entry] : entries_) {
    v1::ImplicitRedistribution* added = all.add_redistributions();
    added->set_operator_name(std::get<0>(key));
    added->set_site(std::get<1>(key));
    toWire(entry.redistribution, added->mutable_redistribution());
    added->set_count(entry.count);
  }
  return all;
}

}  // namespace dtorch
