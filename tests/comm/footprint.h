#pragma once
#include <cstddef>
#include <string>

namespace dtorch::testing {

/// What this process holds of the system: what operations that leave nothing behind do not make grow.
struct Footprint {
  std::size_t descriptors = 0;
  std::size_t mappings = 0;
  std::size_t pages = 0;  // resident

  static Footprint now();
  /// What is more than `before`; empty: nothing, but for a few mappings and `slackPages` (1 MiB) that allocators keep.
  std::string growthSince(const Footprint& before, std::size_t slackPages = 256) const;
};

}  // namespace dtorch::testing
