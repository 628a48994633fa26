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

/// Futures that clients await: each is resolved exactly once, with a value or an error. Large values are lent to
/// clients of this host, where the worker has put them, and sent on to others as fast as they take them.
///
/// Thread: the controller loop's.
class FutureTable {
 public:
  explicit FutureTable(Executor* executor) : executor_(executor) {}

  /// A value of `bytes` that a worker is asked for; the returned number is the Fetch's. `group` is whose loss ends the
  /// wait. `clientFuture` must not be awaited already.
  /// `byTicket`: a large value may be lent.
  FutureId await(SessionId session, std::shared_ptr<SessionChannel> channel, FutureId clientFuture, GroupId group,
                 OperandId operand, std::uint64_t bytes, bool byTicket);
  bool awaits(SessionId session, FutureId clientFuture) const;
  /// Bytes of values that the session has asked for and not been sent.
  std::uint64_t openBytes(SessionId session) const;
  /// A worker has answered: `failure`, when there is one, goes before the value.
  void resolve(Rank rank, const v1::FetchedValue& value, OperandFailurePtr failure);
  struct Fetched {
    OperandId operand = 0;      // 0: the number is not pending
    OperatorNumber behind = 0;  // the last operator before it
  };
  /// What a pending number waits for.
  Fetched fetched(FutureId fetch) const;
  /// The client does not want the value, or has done with what was lent.
  void cancel(SessionId session, FutureId clientFuture);
  /// The client cannot reach what was lent: sends it on. Does nothing when there is no such value.
  void stream(SessionId session, FutureId clientFuture);
  /// What an operand holds from operator `since` on does not come.
  struct EndedOperand {
    OperandFailurePtr failure;
    OperatorNumber since = 0;
  };
  using EndedOperands = absl::flat_hash_map<OperandId, EndedOperand>;
  /// Fails what the session waits for of these operands.
  void failOperands(SessionId session, const EndedOperands& operands);
  /// Fails all that the session waits for.
  void failAll(SessionId session, OperandFailure* failure);
  /// Fails whatever waits for a group that has an error, and what `rank` has lent.
  absl::flat_hash_set<SessionId> failBrokenGroups(Rank rank, const absl::Status& why);
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
    OperatorNumber behind = 0;  // the last operator before it
    std::uint64_t bytes = 0;
    bool byTicket = false;
  };
  // A large value, where its worker has put it.
  struct LargeValue {
    Pending pending;
    Rank rank = 0;
    FutureId fetch = 0;
    SegmentRef segment;
    v1::TensorMeta meta;
    absl::Status lost;        // its worker has ended
    std::uint64_t bytes = 0;  // of `segment`, which may be larger
  };
  // One on its way to a client.
  struct Transfer {
    LargeValue value;
    Segment segment;
    std::uint64_t offset = 0;
  };
  // What one session waits for.
  struct Waiting {
    absl::flat_hash_map<FutureId, FutureId> fetches;  // by the client's number
    std::deque<Transfer> transfers;
    absl::flat_hash_map<FutureId, LargeValue> lent;  // by the client's number
    std::uint64_t bytes = 0;
    std::uint64_t lentBytes = 0;
  };
  void lend(LargeValue value, const v1::ValueTicket& ticket);
  void transfer(LargeValue value);
  bool advance(Transfer* transfer);
  void release(const LargeValue& value) { release(value.rank, value.fetch); }
  void release(Rank rank, FutureId fetch);
  /// Fails those that `failureOf` has a failure for.
  template <typename FailureOf>
  void failPending(FailureOf failureOf);
  /// Takes one out of pending_; what it waits for is open no more.
  Pending take(absl::flat_hash_map<FutureId, Pending>::iterator it);
  void close(SessionId session, std::uint64_t bytes);

  Executor* executor_;
  FutureId next_ = 1;
  absl::flat_hash_map<FutureId, Pending> pending_;  // by Fetch
  absl::flat_hash_map<SessionId, Waiting> waiting_;
};

}  // namespace dtorch
