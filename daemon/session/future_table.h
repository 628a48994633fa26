#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "core/ids.h"
#include "daemon/executor/executor.h"
#include "daemon/graph/tensor_layout.h"
#include "daemon/session/operand_failure.h"
#include "daemon/session/session_channel.h"
#include "shm/segment.h"

namespace dtorch {

/// Futures that clients await: each is resolved exactly once, with a value or an error. Large values are sent on as
/// fast as the client takes them.
///
/// Thread: the controller loop's.
class FutureTable {
 public:
  explicit FutureTable(Executor* executor) : executor_(executor) {}

  /// A value that a worker is asked for; the returned number is the Fetch's. `group` is whose loss ends the wait.
  FutureId await(SessionId session, std::shared_ptr<SessionChannel> channel, FutureId clientFuture, GroupId group,
                 OperandId operand);
  /// A worker has answered: `failure`, when there is one, goes before the value.
  void resolve(Rank rank, const v1::FetchedValue& value, OperandFailurePtr failure);
  /// The operand that a pending number waits for; 0 when there is none.
  OperandId operandOf(FutureId fetch) const;
  void cancel(SessionId session, FutureId clientFuture);
  /// Fails whatever waits for a group that has an error.
  void failBrokenGroups(Rank rank);
  void dropSession(SessionId session);
  /// The client takes more: go on with its transfers.
  void continueTransfers(SessionId session);
  std::size_t pendingOf(SessionId session) const;

  static void sendError(SessionChannel* channel, FutureId clientFuture, OperandFailure* failure);

 private:
  struct Pending {
    SessionId session = 0;
    std::shared_ptr<SessionChannel> channel;
    FutureId clientFuture = 0;
    GroupId group = 0;
    OperandId operand = 0;
  };
  // A large value on its way to a client.
  struct Transfer {
    Pending pending;
    Rank rank = 0;
    FutureId fetch = 0;
    Segment segment;
    v1::TensorMeta meta;
    std::uint64_t offset = 0;
  };
  bool advance(Transfer* transfer);
  void release(Rank rank, FutureId fetch);

  Executor* executor_;
  FutureId next_ = 1;
  absl::flat_hash_map<FutureId, Pending> pending_;
  absl::flat_hash_map<SessionId, std::deque<Transfer>> transfers_;
};

}  // namespace dtorch
