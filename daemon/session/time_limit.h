#pragma once
#include <chrono>
#include <cstdint>

#include "absl/status/status.h"

namespace dtorch {

/// By when a call, put or redistribution shall be done.
struct TimeLimit {
  std::uint32_t ms = 0;  // as the client gave it, counted from the arrival; 0: there is none
  std::chrono::steady_clock::time_point end;
};

/// DEADLINE_EXCEEDED once it is over.
absl::Status checkTime(const TimeLimit& limit);

}  // namespace dtorch
