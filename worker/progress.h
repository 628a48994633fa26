#pragma once
#include <atomic>
#include <cstdint>

#include "core/ids.h"
#include "worker/plan.h"
#include "worker/stream_order.h"

namespace dtorch {

/// What one stream is doing, for heartbeats.
///
/// Thread: written by whoever has the stream's turn, with plain stores; read by any.
struct alignas(64) StreamProgress {
  std::atomic<const Plan*> currentPlan{nullptr};  // of `current`; may be gone afterwards
  std::atomic<OperatorNumber> current{0};         // 0: nothing runs
  std::atomic<OperatorNumber> lastDone{0};
  std::atomic<std::uint64_t> done{0};

  void begin(const Plan* plan, OperatorNumber number) {
    currentPlan.store(plan, std::memory_order_relaxed);
    current.store(number, std::memory_order_release);
  }
  void pause() { current.store(0, std::memory_order_relaxed); }
  void end(OperatorNumber number) {
    current.store(0, std::memory_order_relaxed);
    lastDone.store(number, std::memory_order_relaxed);
    done.store(done.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
};

}  // namespace dtorch
