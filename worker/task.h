#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/any_invocable.h"
#include "comm/group/thread_group_manager.h"
#include "core/ids.h"
#include "worker/operand_table.h"
#include "worker/plan.h"

namespace dtorch {

class KernelRunner;

/// The tensors of one call, by slot, and what went wrong in it.
struct CallState {
  std::vector<at::Tensor> tensors;
  std::vector<FailurePtr> failures;  // empty as long as nothing failed, else one a slot
  FailurePtr firstFailure;
  std::vector<BrokenGroup> broken;  // when a collective was given up
  bool dropped = false;             // by a cancel
  bool originates = false;          // something failed in this call by itself, not through an input
  std::vector<OperandId> poisoned;  // inputs that a failed kernel was to change

  void reset(std::uint32_t slots) {
    tensors.clear();
    tensors.resize(slots);
    if (firstFailure == nullptr) return;
    failures.clear();
    firstFailure.reset();
    broken.clear();
    originates = false;
    poisoned.clear();
  }
  /// Null: the slot has not failed.
  FailurePtr failureOf(std::uint32_t slot) const { return failures.empty() ? nullptr : failures[slot]; }
  void fail(std::uint32_t slot, const FailurePtr& why) {
    failures.resize(tensors.size());
    failures[slot] = why;
    if (firstFailure == nullptr) firstFailure = why;
  }
};

/// What a stream has to do: a segment of a call, or a job.
struct Task {
  /// The other stream's task to wait for; 0: none.
  Ticket waitFor = 0;
  // A segment of a call.
  const Plan* plan = nullptr;
  std::uint32_t segment = 0;
  OperatorNumber number = 0;
  std::uint32_t site = 0;
  SessionId session = 0;
  bool validate = false;
  absl::InlinedVector<OperandRef, 4> operands;  // the call's inputs, then its outputs
  std::shared_ptr<CallState> call;              // of a call that has several segments
  // Anything else.
  absl::AnyInvocable<void(KernelRunner&)> job;
  bool brief = false;  // the job takes no time if its operands are small
};

/// Whether `task`, which is next on its stream, takes less time than to wake a thread.
bool isBrief(const Task& task);

}  // namespace dtorch
