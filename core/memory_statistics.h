#pragma once
#include <array>
#include <cstdint>

namespace dtorch {

/// What the tensors of one process hold, as its allocator counts: blocks are rounded up.
struct MemoryStatistics {
  std::int64_t allocatedBytes = 0;
  std::int64_t peakAllocatedBytes = 0;
  std::int64_t reservedBytes = 0;  // with what is kept for later tensors
  std::int64_t peakReservedBytes = 0;
  std::int64_t blocks = 0;      // in use
  std::int64_t blocksMade = 0;  // since the start
};

/// The columns of what dtorch::memory_stats returns.
inline constexpr std::array<std::int64_t MemoryStatistics::*, 6> kMemoryColumns = {
    &MemoryStatistics::allocatedBytes, &MemoryStatistics::peakAllocatedBytes,
    &MemoryStatistics::reservedBytes,  &MemoryStatistics::peakReservedBytes,
    &MemoryStatistics::blocks,         &MemoryStatistics::blocksMade};

}  // namespace dtorch
