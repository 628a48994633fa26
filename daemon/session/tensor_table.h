#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/ids.h"
#include "daemon/executor/executor.h"
#include "daemon/graph/tensor_layout.h"
#include "daemon/session/operand_failure.h"

namespace dtorch {

/// Memory on the workers that several tensors stand for, or that operators write to.
struct OperandMemory {
  /// Why it does not hold what the program thinks it does: a writer was refused, or failed on some rank.
  OperandFailurePtr failure;
  /// Where PyTorch has a view of a tensor and this session has one of a copy, as the tensor had to be moved for it:
  /// nobody may write to it, and it is lost when somebody writes to the tensor.
  std::shared_ptr<OperandMemory> viewed;                  // the tensor's; null: it is no copied view
  std::vector<std::weak_ptr<OperandMemory>> copiedViews;  // of this memory, and of those
  std::size_t tensors = 0;                                // that share it, on the workers
  std::uint64_t bytesOfGone = 0;  // charged to tensors that are gone, while others still hold it
};

/// A tensor of a session: what is known of it on the daemon.
struct SessionTensor {
  OperandId id = 0;  // 0: no worker has it, because of `error`
  const TensorLayout* layout = nullptr;
  OperandFailurePtr error;                // its own
  std::shared_ptr<OperandMemory> memory;  // null: no other tensor shares it, and nothing has written to it
  std::uint64_t bytes = 0;                // charged to it: TensorTable's

  /// Why it has no value; null: it has one, or will.
  const OperandFailurePtr& failure() const { return error == nullptr && memory != nullptr ? memory->failure : error; }
};

struct SessionLimits {
  std::size_t maxTensors = 0;     // session.max_tensors
  std::uint64_t maxBytes = 0;     // session.max_bytes
  std::size_t maxAllTensors = 0;  // sessions.max_tensors
  std::uint64_t maxAllBytes = 0;  // sessions.max_bytes
};

/// What all sessions hold together.
struct TensorTotals {
  std::size_t tensors = 0;
  std::uint64_t bytes = 0;
};

/// The tensors of one session, which of them share memory, and what they take.
///
/// Thread: the controller loop's.
class TensorTable {
 public:
  TensorTable(const SessionLimits& limits, TensorTotals* totals) : limits_(limits), totals_(totals) {}

  /// Null: not a tensor of this session.
  const SessionTensor* find(TensorId tensor) const;
  /// Whether tensors can be made under these ids. INVALID_ARGUMENT: one is 0 or in use; RESOURCE_EXHAUSTED: too many
  /// failed ones.
  absl::Status checkNew(TensorId first, std::uint32_t count) const;
  /// RESOURCE_EXHAUSTED: with `added` (and what is on its way) the session, or all together, would hold too much.
  /// `aliases`: of each, the input whose memory it shares, which takes no more; negative: memory of its own.
  absl::Status checkQuota(absl::Span<const TensorLayout* const> added, absl::Span<const int> aliases) const;
  /// RESOURCE_EXHAUSTED: the value takes more than the session may hold, as that of a view that repeats elements may.
  absl::Status checkValue(const TensorLayout* layout) const;
  /// A tensor that is on its way in counts as held.
  void setIncoming(const TensorLayout* layout) { incoming_ = layout; }

  void add(TensorId tensor, SessionTensor operand);
  /// Tensors without a value. `memory`: that they would have shared; null: none.
  void addFailed(TensorId first, std::uint32_t count, const OperandFailurePtr& failure,
                 const std::shared_ptr<OperandMemory>& memory = nullptr);
  SessionTensor remove(TensorId tensor);

  /// The memory of `tensor`, which another one is about to share or an operator to write to.
  std::shared_ptr<OperandMemory> memoryOf(TensorId tensor);
  /// New memory for a view of a copy of `tensor`.
  std::shared_ptr<OperandMemory> copyViewOf(TensorId tensor);
  /// Of a tensor that had none.
  void setMemory(TensorId tensor, std::shared_ptr<OperandMemory> memory);
  /// Whether there are views of copies of this memory.
  static bool hasCopiedViews(const OperandMemory& memory);
  /// Views of copies of this memory are not what they should be any more.
  static void loseCopiedViews(OperandMemory& memory, const OperandFailurePtr& failure);
  /// Fails `tensor` and all that share memory with it, or are views of it: whoever reads what was not written must hear
  /// of it.
  void failMemory(TensorId tensor, const OperandFailurePtr& failure);
  /// `number` will write to the memory; remembered until every rank of `group` has done it.
  void addWriter(OperatorNumber number, GroupId group, std::shared_ptr<OperandMemory> memory, const Executor& executor);
  /// Tensors that stand for these operands have no value.
  void failOperands(const absl::flat_hash_map<OperandId, OperandFailurePtr>& operands);
  /// The operands of tensors without a value.
  absl::flat_hash_set<OperandId> failedOperands() const;
  /// Tensors of groups that have failed have lost their value.
  void failBroken(const OperandFailurePtr& failure, const Executor& executor);
  /// `number` has failed on some rank: what it was to write to is lost.
  void writerFailed(OperatorNumber number, const OperandFailurePtr& failure);

  std::size_t size() const { return tensors_.size(); }
  std::uint64_t bytes() const { return bytes_; }
  std::vector<TensorId> ids() const;
  /// The operands that tensors stand for.
  absl::flat_hash_set<OperandId> operands() const;
  void addUsed(absl::flat_hash_set<const TensorLayout*>& layouts) const;

 private:
  static void fail(OperandMemory& memory, const OperandFailurePtr& failure);
  struct Writer {
    OperatorNumber number;
    std::shared_ptr<OperandMemory> memory;
  };
  const SessionLimits limits_;
  TensorTotals* const totals_;
  absl::flat_hash_map<TensorId, SessionTensor> tensors_;
  std::uint64_t bytes_ = 0;
  const TensorLayout* incoming_ = nullptr;
  absl::flat_hash_map<GroupId, std::deque<Writer>> writers_;  // in the order of their numbers
};

}  // namespace dtorch
