#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/node_hash_map.h"
#include "core/call_site.h"
#include "core/ids.h"
#include "daemon/executor/executor.h"
#include "daemon/graph/tensor_layout.h"
#include "daemon/placement/operator_template.h"
#include "daemon/placement/planner.h"
#include "daemon/session/future_table.h"
#include "daemon/session/operand_failure.h"
#include "daemon/session/session_channel.h"
#include "shm/segment.h"

namespace dtorch {

/// A tensor of a session: what is known of it on the daemon.
struct Operand {
  OperandId id = 0;  // 0: no worker has it, because of `failure`
  const TensorLayout* layout = nullptr;
  OperandFailurePtr failure;
};

struct SessionLimits {
  std::size_t maxTensors = 0;  // session.max_tensors
  std::uint64_t maxBytes = 0;  // session.max_bytes
};

/// Counts and tables shared by all sessions of a daemon. Thread: the controller loop's.
struct SessionServices {
  LayoutTable* layouts = nullptr;
  Planner* planner = nullptr;
  Executor* executor = nullptr;
  FutureTable* futures = nullptr;
  int worldSize = 0;
  SessionLimits limits;
  std::uint64_t failed = 0;  // operators, over all sessions
  absl::node_hash_map<DeviceMesh, PlacedMesh> meshes;
  /// By name, arguments and mesh, serialised: sessions that call the same share plans.
  absl::flat_hash_map<std::string, std::shared_ptr<const OperatorTemplate>> templates;
};

/// One client stream: its tensors, templates, meshes and call sites, and the requests that act on them.
///
/// Thread: the controller loop's.
class ClientSession {
 public:
  ClientSession(SessionId id, std::shared_ptr<SessionChannel> channel, SessionServices* services);

  enum class Progress : std::uint8_t {
    kDone,     // the channel reads on
    kWaiting,  // its group is not usable for now: go on when it is
    kTurnOver  // others have a turn first
  };
  /// Works on the request, for one turn at most.
  Progress work();
  void accept(std::unique_ptr<ClientRequest> request);
  bool hasWork() const { return request_ != nullptr; }
  /// The client has read most of what was queued for it.
  void drained();
  /// Releases everything; nothing may be called afterwards.
  void close();

  /// A worker's report about an operator of this session.
  void operatorFailed(Rank rank, const v1::OperatorFailed& failed);
  /// Why `operand` has no value, if a worker has said so; or the error that came in place of the value.
  OperandFailurePtr failureOf(OperandId operand, Rank rank, const v1::FetchedValue& value);
  void fenceReached(std::uint64_t fence);
  /// A worker is gone: fences of its groups end.
  void failBrokenGroups(Rank rank);

  /// Adds what the session's tensors look like.
  void addLayouts(absl::flat_hash_set<const TensorLayout*>& used) const;

  SessionId id() const { return id_; }
  SessionChannel* channel() { return channel_.get(); }
  std::uint64_t unobservedFailures() const;
  v1::SessionStatus status() const;

 private:
  struct TemplateEntry {
    std::shared_ptr<const OperatorTemplate> op;
    std::string name;
    absl::Status error;
    std::uint32_t outputs = 0;
    std::size_t bytes = 0;  // of its definition
  };
  // The put whose bytes are coming in.
  struct Incoming {
    TensorId tensor = 0;
    std::uint32_t site = 0;
    const TensorLayout* layout = nullptr;
    v1::Upload upload;
    Segment segment;
    std::uint64_t totalBytes = 0;
    std::uint64_t received = 0;
    bool waiting = false;       // complete, but its group is not usable yet
    OperandFailurePtr failure;  // found at the start; the bytes that still come are swallowed
  };

  Progress workOn(const v1::CommandBatch& batch);
  // These return false when the command must wait for its group, and have then changed nothing.
  bool run(const v1::Command& command);
  bool runCall(const v1::Command& command);
  void hello(const v1::ClientHello& hello);
  void defineSite(const v1::SiteDefinition& definition);
  void defineTemplate(const v1::TemplateDefinition& definition);
  void defineMesh(const v1::MeshDefinition& definition);
  bool put(const v1::Put& put, std::uint32_t site);
  bool putChunk(const v1::PutChunk& chunk);
  bool finishPut();
  bool redistribute(const v1::Command& command);
  bool get(const v1::Command& command);
  void describe(const v1::Describe& describe);
  bool synchronize(const v1::Synchronize& synchronize);
  void release(const v1::Release& release);

  void receive(std::uint64_t offset, const std::string& data);
  void finishSynchronize(FutureId future);
  absl::StatusOr<TensorLayout> checkPut(const v1::Put& put) const;
  absl::Status checkQuota(absl::Span<const TensorLayout* const> added) const;
  absl::StatusOr<const PlacedMesh*> mesh(std::uint32_t id) const;
  /// Whether the group takes commands now, or has failed for good (then they are dropped).
  bool canAppend(GroupId group) const;
  bool addTensor(TensorId tensor, Operand operand);
  /// The outputs of a call that was refused, and the tensors that it was to write to, get the failure.
  void refuse(const v1::Command& command, const OperatorTemplate& op, const OperandFailurePtr& failure);
  void poison(TensorId first, std::uint32_t count, const OperandFailurePtr& failure);
  void remember(const OperandFailurePtr& failure);
  void forgetFailuresOfReleased();
  void readOn();
  OperandFailurePtr fail(absl::Status status, std::string operatorName, std::uint32_t site);
  OperandFailurePtr unknownTensor(TensorId tensor, const std::string& operatorName, std::uint32_t site);
  std::string site(std::uint32_t id) const;
  OperandId publish(PlannedOperator* plan, absl::Span<const OperandId> inputs, std::uint32_t site);
  OperandFailurePtr reportedFailure(OperatorNumber root, Rank rank, std::uint32_t site, const v1::Status& error);
  void protocolError(const absl::Status& status);

  SessionId id_;
  std::shared_ptr<SessionChannel> channel_;
  SessionServices* services_;
  bool greeted_ = false;
  bool closed_ = false;
  bool held_ = false;  // not read from, because it does not read
  std::string client_;
  std::chrono::steady_clock::time_point opened_;

  std::unique_ptr<ClientRequest> request_;
  int cursor_ = 0;

  absl::flat_hash_map<TensorId, Operand> tensors_;
  std::uint64_t tensorBytes_ = 0;
  absl::flat_hash_map<std::uint32_t, TemplateEntry> templates_;
  std::size_t templateBytes_ = 0;
  absl::flat_hash_map<std::uint32_t, const PlacedMesh*> meshes_;
  absl::flat_hash_map<std::uint32_t, CallSite> sites_;
  absl::flat_hash_set<GroupId> groups_;
  std::unique_ptr<Incoming> incoming_;

  OperandId nextOperand_;
  std::uint64_t nextFence_;
  /// What workers have reported: by operator, and by each operand that has no value for it.
  absl::flat_hash_map<OperatorNumber, OperandFailurePtr> reported_;
  absl::flat_hash_map<OperandId, OperandFailurePtr> failedOperands_;
  /// Failures that no future has delivered yet, oldest first; the oldest few are kept.
  std::vector<OperandFailurePtr> unobserved_;
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
  std::uint64_t failed_ = 0;
};

}  // namespace dtorch
