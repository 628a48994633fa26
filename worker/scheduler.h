#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "comm/group/thread_group_manager.h"
#include "core/ids.h"
#include "dtorch/v1/worker.pb.h"
#include "worker/cancel_gate.h"
#include "worker/kernel_stream.h"
#include "worker/operand_table.h"
#include "worker/plan.h"
#include "worker/reporter.h"
#include "worker/stream_order.h"
#include "worker/task.h"
#include "worker/value_segments.h"

namespace dtorch {

using TaskStreams = std::array<KernelStream<Task>, kStreams>;

/// Turns the daemon's commands into tasks: decodes plans, resolves operand ids and orders the streams. Never waits for
/// a task.
///
/// Thread: the message loop's. Owns: the tensor table and the plans; they outlive the streams' threads.
class Scheduler {
 public:
  /// `destroyingPlans` is held while plans are destroyed, so that another thread can read the one that runs.
  Scheduler(Rank rank, at::Device device, TaskStreams& streams, CancelGate& gate, Reporter& reporter,
            ThreadGroupManager& groups, ValueSegments& values, absl::Mutex& destroyingPlans)
      : rank_(rank),
        device_(device),
        streams_(streams),
        gate_(gate),
        reporter_(reporter),
        groups_(groups),
        values_(values),
        destroyingPlans_(destroyingPlans) {}

  /// Enqueues `command`; `number` is the operator's, if it runs a plan. May move out of it. An error is one of the
  /// protocol, after which this worker must not go on; an operator's own error goes to its outputs.
  absl::Status enqueue(v1::WorkerCommand& command, OperatorNumber number);
  /// Reports `item` when all that was enqueued before has run.
  void reportAfterAll(const v1::ReportItem& item);
  /// Wakes the streams that have tasks: a few, right after they were enqueued, may be run in their place.
  void wakeStreams();

  std::int64_t tensorBytes() const { return operands_.bytes(); }

 private:
  using Job = absl::AnyInvocable<void(KernelRunner&)>;

  absl::Status definePlan(const v1::Plan& wire);
  void forgetPlans(PlanId below);
  absl::Status runPlan(const v1::WorkerCommand& command, OperatorNumber number);
  void failCall(const Plan& plan, const v1::WorkerCommand& command, OperatorNumber number, const absl::Status& why);
  absl::Status upload(v1::Upload& wire, std::uint32_t site);
  void fetch(const v1::Fetch& wire);
  void setPeers(const v1::Peers& wire);
  void hold(const v1::Cancel& wire);
  void decide(const v1::CancelDecided& wire);

  OperandRef inputOf(OperandId id);
  /// `brief`: it takes no time if `operands` are small.
  void enqueueJob(StreamKind stream, Job job, bool brief = false, absl::Span<const OperandRef> operands = {});
  /// Makes the staged task visible; wakes its stream once several wait.
  void publish(StreamKind stream);
  KernelStream<Task>& streamOf(StreamKind kind) { return streams_[static_cast<std::size_t>(kind)]; }
  /// The ticket of the next task on `stream`.
  Ticket nextTicket(StreamKind stream) const { return order_.issued(stream) + 1; }

  const Rank rank_;
  const at::Device device_;
  TaskStreams& streams_;
  CancelGate& gate_;
  Reporter& reporter_;
  ThreadGroupManager& groups_;
  ValueSegments& values_;
  absl::Mutex& destroyingPlans_;
  StreamOrder order_;
  int unheard_ = 0;  // tasks published since the streams were woken
  OperandTable operands_;
  absl::flat_hash_map<PlanId, std::unique_ptr<const Plan>> plans_;
};

}  // namespace dtorch
