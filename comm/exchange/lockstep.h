#pragma once
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "comm/exchange/arena.h"
#include "core/ids.h"
#include "shm/process_watch.h"

namespace dtorch {

/// What a rank waits for, if a quick peer would have come by now.
struct RankWait {
  Rank peer = 0;
  std::string call;  // "all_reduce of operator 12, aten::mm, float32[4]"
  std::chrono::steady_clock::time_point since;
};

/// One rank's end of the steps that all ranks of a group take together: take a step, wait until all have taken it. All
/// ranks take the same steps in the same order, so that one counter a rank says how far it is.
///
/// Thread: one caller of step() and awaitAll(), which may move it to another of the processors that it is allowed;
/// breakGroup() and wait() from any thread.
class Lockstep {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  /// `watches[i]` follows the process of rank i; a rank of this process has a default-made one.
  Lockstep(Arena arena, int self, std::vector<ProcessWatch> watches);

  /// Everything this rank wrote before is visible to whoever sees the step.
  void step();
  /// Waits until every rank has taken as many steps as this one.
  /// Errors, after which the group is broken for all: UNAVAILABLE a process ended, DEADLINE_EXCEEDED; or the reason for
  /// which it was broken before.
  absl::Status awaitAll(Deadline deadline, const Call& call);
  /// Makes the group unusable for all its ranks: their waits end with `why`. The first reason stays.
  void breakGroup(const absl::Status& why);
  /// Why the group is unusable; OK when it is not.
  absl::Status broken() const;
  /// What the caller of awaitAll() waits for.
  std::optional<RankWait> wait() const;

 private:
  bool reached(int peer) const;
  /// Whether this rank and `peer` run on different processors; leaves a shared one, at most once in a while.
  bool standsApart(int peer);
  absl::Status awaitSlowly(int peer, Deadline deadline, const Call& call);
  absl::Status findDead() const;

  Arena arena_;
  const int self_;
  const int spins_;
  std::uint32_t steps_ = 0;
  std::chrono::steady_clock::time_point mayMove_;  // to another processor
  std::vector<ProcessWatch> watches_;
  mutable std::mutex mutex_;  // guards what follows
  bool gaveReason_ = false;
  int awaited_ = -1;  // the peer, while the caller waits slowly
  Call awaitedIn_;
  std::chrono::steady_clock::time_point awaitedSince_;
};

}  // namespace dtorch
