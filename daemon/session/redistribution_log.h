#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "core/placement.h"
#include "daemon/placement/placed_operator.h"
#include "dtorch/v1/client.pb.h"

namespace dtorch {

/// The redistributions that a session's calls have made of their own accord, counted.
///
/// Thread: the controller loop's.
class RedistributionLog {
 public:
  /// Of one call of `op` at `site`. Beyond some thousands of different ones, new ones count together, without a site.
  void add(const std::string& op, const std::string& site, const std::vector<Redistribution>& redistributions);
  v1::RedistributionList list() const;
  std::uint64_t count() const { return count_; }

 private:
  using Key = std::tuple<std::string, std::string, std::uint32_t, std::string, std::string>;
  struct Entry {
    Redistribution redistribution;
    std::uint64_t count = 0;
  };
  std::map<Key, Entry> entries_;
  std::uint64_t count_ = 0;
};

}  // namespace dtorch
