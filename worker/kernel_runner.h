#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "comm/group/thread_group_manager.h"
#include "core/ids.h"
#include "worker/cancel_gate.h"
#include "worker/failure.h"
#include "worker/lost_memory.h"
#include "worker/plan.h"
#include "worker/progress.h"
#include "worker/random_states.h"
#include "worker/reporter.h"
#include "worker/task.h"
#include "worker/worker_host.h"

namespace dtorch {

/// Runs the tasks of one stream: kernels through the dispatcher, conversions through the groups. Nothing that fails
/// here leaves a task: an operator's error goes into its outputs, and from there to whatever depends on them.
///
/// Thread: of whoever has the stream's turn.
class KernelRunner {
 public:
  KernelRunner(Rank rank, StreamKind stream, CancelGate& gate, ThreadGroupManager& groups, LostMemory& lostMemory,
               RandomStates& randomStates, Reporter& reporter, StreamProgress& progress,
               std::shared_ptr<spdlog::logger> log)
      : rank_(rank),
        stream_(stream),
        gate_(gate),
        groups_(groups),
        lostMemory_(lostMemory),
        randomStates_(randomStates),
        progress_(progress),
        reports_(reporter),
        log_(std::move(log)),
        host_(log_) {}

  void run(Task& task);
  /// What is kept for the session is not needed any more.
  void endSession(SessionId session);
  /// Another worker has taken the place of this rank's: its meshes' random states begin anew on all their ranks.
  void rankReplaced(Rank rank) { randomStates_.dropMeshesOf(rank); }
  /// What this stream has to report.
  ReportBatch& reports() { return reports_; }
  Rank rank() const { return rank_; }
  /// Why `operand` has no value; null: it has one.
  FailurePtr failureOf(const Operand& operand) const;
  /// Makes `operands` hold `failure` and reports it as the result of operator `number` (0: not an operator).
  void fail(absl::Span<const OperandRef> operands, const FailurePtr& failure, SessionId session, OperatorNumber number);

 private:
  void runSegment(const Task& task, CallState& call);
  void runAction(const KernelAction& action, const Task& task, CallState& call);
  void runAction(const ConvertAction& action, const Task& task, CallState& call);
  void finishCall(const Task& task, CallState& call);
  /// The call is not run: its outputs, and what it was to write to, have no value.
  void drop(const Task& task);
  /// Makes output `index` share memory with the planned input, or with none, and a part lie in the order of the whole's
  /// dimensions: whether a kernel copies, and what it makes of its inputs' strides, may depend on the part that a rank
  /// has.
  static absl::Status settleMemory(const Plan& plan, std::size_t index, CallState& call);
  /// Gives output `index` the planned shape and dtype if it has no elements and shall have none: some kernels return
  /// others for parts without elements (pixel_unshuffle its input's shape, softmax its input's dtype).
  static absl::Status fitEmpty(const Plan& plan, std::size_t index, at::Tensor& tensor);
  /// OK when output `index` looks as planned.
  static absl::Status checkOutput(const Plan& plan, std::size_t index, const at::Tensor& tensor);
  /// OK when it lies as planned, too.
  static absl::Status checkPlace(const Plan& plan, std::size_t index, const at::Tensor& tensor);
  void reportOutputs(const Task& task, const CallState& call);
  /// An error of this call's own.
  FailurePtr originate(const std::string& what, const absl::Status& status, const Task& task, CallState& call) const;
  void report(const FailurePtr& failure, SessionId session, OperatorNumber number,
              const std::vector<OperandId>& operands, bool originates, const std::vector<BrokenGroup>& broken);

  const Rank rank_;
  const StreamKind stream_;
  CancelGate& gate_;
  ThreadGroupManager& groups_;
  LostMemory& lostMemory_;
  RandomStates& randomStates_;
  StreamProgress& progress_;
  ReportBatch reports_;
  const std::shared_ptr<spdlog::logger> log_;
  WorkerHost host_;
  CallState call_;                   // of calls with one segment
  std::vector<at::Tensor> results_;  // of one kernel
};

}  // namespace dtorch
