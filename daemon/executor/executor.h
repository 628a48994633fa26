#pragma once
#include <google/protobuf/arena.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/ids.h"
#include "daemon/executor/plan_costs.h"
#include "dtorch/v1/worker.pb.h"
#include "shm/segment.h"

namespace dtorch {

struct ExecutorOptions {
  std::string frameEndpoint;   // bound XPUB
  std::string reportEndpoint;  // bound PULL
  int worldSize = 1;
  /// Credit of one group: what may be published and not yet done.
  std::uint64_t maxOperatorsInFlight = 16384;
  std::uint64_t maxBytesInFlight = 256u << 20;
  std::chrono::milliseconds maxTimeInFlight{100};
};

/// What the workers have to say. Thread: the controller loop's.
class ExecutorListener {
 public:
  virtual ~ExecutorListener() = default;
  /// Hello and subscription have both arrived.
  virtual void onWorkerConnected(Rank rank, const v1::WorkerHello& hello) = 0;
  /// Whether the report of `error`, and all after it, shall wait: more is to be known about it soon.
  virtual bool postpones(const v1::Status& error) = 0;
  /// Its subscription has gone: its socket is closed.
  virtual void onWorkerDisconnected(Rank rank) = 0;
  /// All ranks hear the group's topic, or credit has come back.
  virtual void onGroupUsable(GroupId group) = 0;
  virtual void onOperatorFailed(Rank rank, const v1::OperatorFailed& failed) = 0;
  virtual void onOutputs(const v1::OperatorOutputs& outputs) = 0;
  virtual void onValue(Rank rank, const v1::FetchedValue& value) = 0;
  /// Every rank of the fence's group has reached it.
  virtual void onFence(std::uint64_t fence) = 0;
  virtual void onWorkerFault(Rank rank, const absl::Status& why) = 0;
  /// `operators` have been done by every rank of their group.
  virtual void onOperatorsDone(std::uint64_t operators) = 0;
};

/// Publishes operators, one message for all ranks of a group, and takes the reports. Nothing is lost: there is no
/// high-water mark, the credit of a group bounds what is in flight, and a group is published to only once every rank's
/// subscription has been seen (its marker topic: XPUB reports equal subscriptions only once). Since the workers run
/// operators in their order, credit is time, too: how long an operator of another session waits behind what is in
/// flight.
///
/// Thread: the controller loop's, all of it.
class Executor {
 public:
  static absl::StatusOr<std::unique_ptr<Executor>> create(zmq::context_t* context, const ExecutorOptions& options,
                                                          ExecutorListener* listener);
  ~Executor();

  /// Descriptors for the loop's poll: readable when there may be something for handleReports() and
  /// handleSubscriptions(). ZeroMQ signals by edges, so that what is called must empty its socket; and flush() may take
  /// the edge of a subscription, so that handleSubscriptions() must follow it before the loop sleeps.
  int reportFd() const { return reports_.get(zmq::sockopt::fd); }
  int subscriptionFd() const { return frames_.get(zmq::sockopt::fd); }
  void handleReports();
  void handleSubscriptions();
  /// The listener has postponed a report: handleReports() is to be called again.
  bool postponed() const { return nextItem_ > 0; }

  /// The group of these ranks, which has failed if one of them is lost; asks them to join when it is new. `ranks` are
  /// all below worldSize.
  /// RESOURCE_EXHAUSTED: there are kMaxGroups, and groups stay.
  absl::StatusOr<GroupId> groupOf(const std::vector<Rank>& ranks);
  /// Whether commands can be appended now: all ranks have joined, and there is credit.
  bool usable(GroupId group) const;
  /// Whether the worker is one of the group's.
  bool holds(GroupId group, Rank rank) const;
  /// Why the group cannot be used any more; OK while it can.
  const absl::Status& error(GroupId group) const;

  /// A run of `plan` at the end of the stream of `group`; the operator's number comes back in `number`.
  v1::WorkerCommand* appendOperator(GroupId group, PlanId plan, OperatorNumber* number);
  /// A tensor's bytes for the workers, numbered as operators are. As for appendCommand().
  v1::Upload* appendUpload(GroupId group, std::uint64_t bytes, std::shared_ptr<const void> memory,
                           OperatorNumber* number);
  /// A new command that is no operator. `bytes` counts against the credit; `memory` is kept until all ranks are done.
  v1::WorkerCommand* appendCommand(GroupId group, std::uint64_t bytes = 0, std::shared_ptr<const void> memory = {});
  /// The workers of `group` that are left drop their parts of `operands`.
  void discard(GroupId group, const std::vector<OperandId>& operands);
  /// All workers forget what they keep for the session, after its last operator.
  void endSession(SessionId session);
  /// Reported by onFence once all ranks of `group` have run everything before it.
  void appendFence(GroupId group, std::uint64_t fence);
  /// Tells every group that plans below this number will not be run any more.
  void forgetPlans(PlanId below);
  /// Publishes what has been appended. Commands leave in the order in which they were appended, over all groups.
  void flush();
  /// Every operator of `group` with a smaller number has run on all its ranks, and its failures have been reported.
  OperatorNumber oldestInFlight(GroupId group) const;
  /// The last operator that was appended.
  OperatorNumber lastOperator() const { return nextOperator_ - 1; }
  /// How many frames have left so far.
  std::uint64_t framesPublished() const { return framesPublished_; }

  /// Operators `first` to `last` of the session (of those in `only`, which ascend, unless it is empty) that have begun
  /// nowhere are dropped by all ranks of `groups`, which are all that run any of them (CANCEL-1).
  void cancel(const absl::flat_hash_set<GroupId>& groups, SessionId session, OperatorNumber first, OperatorNumber last,
              absl::Span<const OperatorNumber> only = {});
  /// A rank that does not answer holds up the others for so long at most: then nothing is dropped.
  void expireCancels();
  /// Tells the workers that are left who their peers are, at this point of their streams.
  void introduce(const v1::Peers& peers);
  /// Sends one command to one worker, past all groups; none to one that is gone.
  void sendToWorker(Rank rank, const v1::WorkerCommand& command);
  /// A rank has gone: every group that holds it fails with `why`; what it had in flight is given up.
  void failRank(Rank rank, const absl::Status& why);
  /// The worker of the rank that was heard last.
  std::uint64_t incarnation(Rank rank) const { return workers_[static_cast<std::size_t>(rank)].incarnation; }
  /// It has ended: what it has said and was not read yet counts no more. False: a later one has been heard.
  bool workerEnded(Rank rank, std::uint64_t incarnation);
  /// Another worker has taken its place, which onWorkerConnected has told of.
  void restoreRank(Rank rank);
  /// A new group in place of one that has failed, if all its ranks are there again; else `group` itself.
  GroupId reform(GroupId group);
  /// Whether all ranks hear the group's topic.
  bool joined(GroupId group) const { return at(group).joined.size() == at(group).ranks.size(); }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t kMaxGroups = 4096;
  struct FrameInFlight {
    OperatorNumber firstOperator = 0;
    std::uint64_t operators = 0;
    std::uint64_t bytes = 0;
    PlanCosts::Seconds time{0};  // that it is thought to take
    std::vector<PlanId> plans;   // of its operators
    Clock::time_point published;
    std::vector<Rank> missing;  // have not reported it done
    std::vector<std::shared_ptr<const void>> memory;
  };
  struct Group {
    std::vector<Rank> ranks;
    absl::flat_hash_set<Rank> joined;
    std::string topic;
    std::uint64_t nextSequence = 1;
    std::deque<FrameInFlight> inFlight;  // the last one has sequence nextSequence - 1
    std::uint64_t operators = 0;         // in flight
    std::uint64_t bytes = 0;
    PlanCosts::Seconds time{0};
    // When something was learned last, and of what it is to be learned next: frames of which one turn has heard.
    Clock::time_point learned;
    Clock::time_point learnSince;
    std::vector<PlanId> plansDone;
    absl::Status error;
  };
  struct WorkerLink {
    std::uint64_t incarnation = 0;
    bool ended = false;  // nothing more of it counts
    bool subscribed = false;
    bool hello = false;
    v1::WorkerHello greeting;
    std::uint64_t nextSequence = 1;
    absl::Status gone;

    /// Of another worker from now on, which counts as gone as long as the last one does.
    void renew(std::uint64_t next) {
      absl::Status still = std::move(gone);
      *this = WorkerLink();
      incarnation = next;
      gone = std::move(still);
    }
  };
  struct PendingFence {
    GroupId group = 0;
    std::size_t missing = 0;
  };
  struct PendingCancel {
    std::vector<Rank> ranks;
    std::vector<Rank> missing;  // have not said how far they are
    std::vector<OperatorNumber> furthest;
    Clock::time_point since;
  };
  using Cancels = absl::flat_hash_map<std::uint64_t, PendingCancel>;

  Executor(zmq::socket_t frames, zmq::socket_t reports, const ExecutorOptions& options, ExecutorListener* listener);
  void handleSubscription(absl::string_view message);
  /// Null: the worker that this comes from has ended.
  WorkerLink* linkTo(Rank rank, std::uint64_t incarnation);
  GroupId addGroup(const std::vector<Rank>& ranks, GroupId insteadOf);
  /// False: an item was postponed.
  bool handleReport(const v1::Report& report);
  /// Null: it says nothing of an error.
  static const v1::Status* errorOf(const v1::ReportItem& item);
  void frameDone(Rank rank, const v1::FrameDone& done);
  void cancelReached(Rank rank, const v1::CancelReached& reached);
  void decideCancel(Cancels::iterator cancel);
  void publish(const std::string& topic, const v1::Frame& frame);
  v1::WorkerCommand* append(GroupId group);
  bool hasCredit(const Group& group) const;
  void learnCosts();
  Group& at(GroupId group) { return groups_[group - 1]; }
  const Group& at(GroupId group) const { return groups_[group - 1]; }

  zmq::socket_t frames_;
  zmq::socket_t reports_;
  ExecutorOptions options_;
  ExecutorListener* listener_;
  std::vector<WorkerLink> workers_;
  std::deque<Group> groups_;  // by GroupId - 1; those that were replaced stay, empty
  absl::flat_hash_map<std::vector<Rank>, GroupId> groupIds_;
  absl::flat_hash_map<std::uint64_t, PendingFence> fences_;
  Cancels cancels_;
  std::uint64_t lastCancel_ = 0;
  OperatorNumber nextOperator_ = 1;
  PlanCosts costs_;
  std::vector<GroupId> toLearnOf_;
  std::uint64_t framesPublished_ = 0;
  v1::Report report_;  // keeps its memory from one message to the next
  int nextItem_ = 0;   // of report_, plus 1, where an item was postponed; else 0

  // The frame under construction; at most one, so that the order over groups is kept.
  google::protobuf::Arena arena_;
  v1::Frame* open_ = nullptr;
  GroupId openGroup_ = 0;
  FrameInFlight openCost_;
};

}  // namespace dtorch
