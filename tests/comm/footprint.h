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
  /// What is more than `before`; empty: nothing, but for 1 MiB of memory and a few mappings that allocators keep.
  std::string growthSince(const Footprint& before) const;
};

}  // namespace dtorch::testing
