#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>

namespace dtorch {

/// Sleeps while `word` holds `expected`, for `timeout` at most. May return early: the caller checks its condition
/// again. Works between processes that share the word's memory.
void futexWait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, std::chrono::nanoseconds timeout);
void futexWakeAll(const std::atomic<std::uint32_t>& word);

}  // namespace dtorch
