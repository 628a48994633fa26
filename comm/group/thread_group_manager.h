#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "comm/exchange/lockstep.h"
#include "comm/group/thread_group.h"
#include "core/ids.h"
#include "shm/segment.h"

namespace dtorch {

/// How a rank is reached by the other ranks on its host.
struct PeerRef {
  Rank rank = 0;
  std::int64_t pid = 0;
  SegmentRef mailbox;
};

/// A group that can no longer be used, or could not be made.
struct BrokenGroup {
  std::vector<Rank> ranks;
  std::uint64_t epoch = 0;  // in which this rank made it, or tried to
};

/// The groups of one rank, made on first use and cached by their ordered ranks.
///
/// Thread: safe.
class ThreadGroupManager {
 public:
  /// Opens this rank's mailbox, the segment through which peers find its groups and tensors.
  static absl::StatusOr<std::unique_ptr<ThreadGroupManager>> create(Rank rank, std::chrono::milliseconds timeout);
  ~ThreadGroupManager();

  /// What peers must be told about this rank.
  const PeerRef& self() const;
  /// Says who the peers are from now on; `epoch` numbers what was said. The groups of a peer that is another process
  /// now, or none, and those in `renewed` are aborted and dropped: the next use makes them anew. Every rank must be
  /// told the same, at the same place among its uses of groups.
  void setPeers(std::vector<PeerRef> peers, std::uint64_t epoch, absl::Span<const std::vector<Rank>> renewed = {});

  /// The group of `ranks`, which hold this one; every member asks for it in the same order relative to its other
  /// groups. NOT_FOUND: a rank that is no peer. UNAVAILABLE: a peer died. DEADLINE_EXCEEDED: a peer did not come.
  absl::StatusOr<ThreadGroup*> group(const std::vector<Rank>& ranks);
  /// What setPeers() should renew.
  std::vector<BrokenGroup> broken() const;
  /// What this rank waits for, in collectives and while groups are made.
  std::vector<RankWait> waits() const;
  /// Ends every running and later call with `why`. Idempotent; any thread.
  void abort(const absl::Status& why);

 private:
  class Impl;
  explicit ThreadGroupManager(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtorch
