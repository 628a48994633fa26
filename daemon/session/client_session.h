#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/types/span.h"
#include "core/ids.h"
#include "daemon/placement/rule_book.h"
#include "daemon/session/definitions.h"
#include "daemon/session/failure_log.h"
#include "daemon/session/incoming_put.h"
#include "daemon/session/redistribution_log.h"
#include "daemon/session/session_channel.h"
#include "daemon/session/session_services.h"
#include "daemon/session/tensor_table.h"

namespace dtorch {

/// One client stream: its tensors, templates, meshes and call sites, and the requests that act on them.
///
/// Thread: the controller loop's.
class ClientSession {
 public:
  ClientSession(SessionId id, std::shared_ptr<SessionChannel> channel, SessionServices* services);

  enum class Progress : std::uint8_t {
    kDone,     // the channel reads on
    kWaiting,  // its group is not usable for now, metadata has been asked, or much is on its way to the client: go on
               // when that changes
    kStuck,    // likewise, and nothing has been done in this turn
    kHeld,     // the client does not read: go on when drained() says so
    kTurnOver  // others have a turn first
  };
  /// Works on the request, for one turn at most.
  Progress work();
  void accept(std::unique_ptr<ClientRequest> request);
  bool hasWork() const { return request_ != nullptr; }
  /// The client has read most of what was queued for it. True: work() was held, and may go on.
  bool drained();
  /// Releases everything; nothing may be called afterwards.
  void close();

  /// Workers' reports about operators of this session.
  void outputsKnown(const v1::OperatorOutputs& outputs);
  void operatorFailed(Rank rank, const v1::OperatorFailed& failed);
  /// Why the operand has no value, if a worker has said so; or the error that came in place of the value.
  OperandFailurePtr failureOf(const FutureTable::Fetched& fetched, Rank rank, const v1::FetchedValue& value);
  void fenceReached(std::uint64_t fence);
  /// The client wants none of what it has called before its CancelCalls `serial`. True: work() may go on.
  bool cancelCalls(std::uint64_t token, std::uint64_t serial);
  void deadlinesPassed(const std::vector<CallDeadline>& calls);
  /// A worker is gone: fences of its groups end, and their tensors are lost.
  void failBrokenGroups(Rank rank, const absl::Status& why, bool told);

  /// Adds what the session's tensors look like, and the meshes that it has defined.
  void addUsed(absl::flat_hash_set<const TensorLayout*>& layouts, absl::flat_hash_set<const PlacedMesh*>& meshes) const;

  SessionId id() const { return id_; }
  SessionChannel* channel() { return channel_.get(); }
  std::uint64_t unobservedFailures() const { return failures_.unobserved(); }
  v1::SessionStatus status() const;
  /// "train.py:31"; empty: none.
  std::string site(std::uint32_t id) const { return definitions_.site(id); }

 private:
  Progress workOn(const v1::CommandBatch& batch);
  // These return false when the command must wait for its group, and have then changed nothing.
  bool run(const v1::Command& command);
  bool runCall(const v1::Command& command);
  void hello(const v1::ClientHello& hello);
  bool put(const v1::Command& command);
  bool putChunk(const v1::PutChunk& chunk);
  bool finishPut();
  bool redistribute(const v1::Command& command);
  bool get(const v1::Command& command);
  void describe(const v1::Describe& describe);
  bool explain(const v1::Command& command);
  void declareRule(const v1::DeclareRule& declared, std::uint32_t site);
  void listRules(FutureId future);
  void sendJson(FutureId future, const google::protobuf::Message& message);
  bool synchronize(const v1::Synchronize& synchronize);
  void awaitWorkers(FutureId future);
  /// The CancelCalls on the stream.
  void reachCancel(std::uint64_t serial);
  /// Ends all that is in flight.
  void cancelInFlight();
  /// A call in flight that ends before it is done, and why: asked for unless it depends on another one that ends.
  struct EndingCall {
    const GraphOperator* op = nullptr;
    std::function<OperandFailurePtr()> failure;
  };
  /// Ends these calls, in the order of their numbers, and what depends on them as far as it is in flight.
  /// `allBetween`: they are all that the session has in flight.
  void endCalls(const std::vector<EndingCall>& ending, bool allBetween);
  /// Of a command of the request that is read.
  TimeLimit timeLimit(const v1::Command& command) const;
  /// A command must wait, but not for longer than its time limit. False.
  bool waitWithin(const TimeLimit& limit);
  /// A command has been published as operator `number`.
  void limitTime(const TimeLimit& limit, OperatorNumber number, std::uint32_t site);
  void forgetTimeLimits();
  /// Calls that are read now stand before a CancelCalls.
  bool isCancelling() const { return cancelWanted_ > cancelDone_; }
  void release(absl::Span<const TensorId> tensors);

  void cancelGet(FutureId future);
  void finishSynchronize(FutureId future);
  /// Whether the group takes commands now, or has failed for good (then they are dropped).
  bool canAppend(GroupId group) const;
  /// Whether tensors can be made under these ids; if not, the session ends.
  bool checkNew(TensorId first, std::uint32_t count);
  /// Whether so many operands or fences can still be numbered; if not, the session ends.
  bool checkNumbers(std::size_t count);
  void receive(const std::string& data);
  /// UNIMPLEMENTED: the ranks might not agree on whether the call reads what it writes, or it writes to a copy.
  absl::Status checkWritten(const OperatorTemplate& op, const v1::Command& command,
                            absl::Span<const TensorLayout* const> layouts) const;
  /// The outputs of a call that was refused, and the tensors that it was to write to, get the failure. `views`: what
  /// the outputs would have been views of, see Planner::viewsOf(); empty: as the schema tells.
  void refuse(const v1::Command& command, const OperatorTemplate& op, const OperandFailurePtr& failure,
              absl::Span<const int> views = {});
  void readOn();
  /// The outputs that were waited for have no value.
  void failAwaited(const OperandFailurePtr& failure);
  OperandFailurePtr fail(absl::Status status, std::string operatorName, std::uint32_t site);
  OperandFailurePtr unknownTensor(TensorId tensor, const std::string& operatorName, std::uint32_t site);
  /// Makes the plan's outputs of `inputs`. The first of the new operands; `number` becomes the operator's.
  OperandId publish(PlannedOperator* plan, absl::Span<const OperandId> inputs, std::uint32_t site,
                    OperatorNumber* number, absl::Span<const std::uint32_t> written = {});
  /// Where the gradient of a tensor lies. INVALID_ARGUMENT.
  absl::StatusOr<Placements> placementsOfGradient(const TensorLayout& gradient, TensorId of) const;
  /// It has been published for this session now.
  void addToGraph(GraphOperator op, absl::string_view name);
  /// Ends the session, unless `status` is OK.
  void protocolError(const absl::Status& status);

  SessionId id_;
  std::shared_ptr<SessionChannel> channel_;
  SessionServices* services_;
  bool greeted_ = false;
  bool opensSegments_ = false;  // of the client's
  bool sync_ = false;           // its client hears of each error before it goes on
  bool validate_ = false;
  bool closed_ = false;
  bool held_ = false;  // not read from, because it does not read
  std::string client_;
  std::chrono::steady_clock::time_point opened_;

  std::unique_ptr<ClientRequest> request_;
  std::chrono::steady_clock::time_point arrived_;  // request_
  int cursor_ = 0;

  const std::uint64_t cancelToken_;
  std::uint64_t cancelWanted_ = 0;  // serials
  std::uint64_t cancelDone_ = 0;
  OperandFailurePtr cancelled_;  // of all cancelled calls: nobody need be told
  bool hasTimeLimits_ = false;
  std::chrono::steady_clock::time_point waitsUntil_;  // for its turn, the last call with a time limit that had to

  Definitions definitions_;
  RuleBook rules_;  // that it has declared, above those of the operator libraries
  TensorTable tensors_;
  FailureLog failures_;
  RedistributionLog redistributions_;
  absl::flat_hash_set<GroupId> groups_;
  std::unique_ptr<IncomingPut> incoming_;
  /// The call whose outputs only its run tells: all later commands wait for them.
  struct AwaitedCall {
    OperatorNumber number = 0;
    GroupId group = 0;
    TensorId tensor = 0;  // the first output, and its operand
    OperandId operand = 0;
    std::shared_ptr<const OperatorTemplate> op;
    std::vector<const TensorLayout*> inputs;
    std::vector<TensorId> inputTensors;
    std::uint32_t site = 0;
    bool implicit = false;
  };
  std::optional<AwaitedCall> awaited_;

  OperandId nextOperand_;
  std::uint64_t nextFence_;
  // One synchronize waits for a fence in each group that the session has used.
  struct PendingFence {
    FutureId future = 0;
    std::size_t missing = 0;
  };
  struct Fence {
    GroupId group = 0;
    std::shared_ptr<PendingFence> pending;
  };
  absl::flat_hash_map<std::uint64_t, Fence> fences_;

  std::uint64_t operators_ = 0;
};

}  // namespace dtorch
