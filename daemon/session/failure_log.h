#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "core/ids.h"
#include "daemon/session/operand_failure.h"
#include "daemon/session/tensor_table.h"
#include "dtorch/v1/worker.pb.h"

namespace dtorch {

/// What went wrong in one session: refused here, or reported by workers.
///
/// Thread: the controller loop's.
class FailureLog {
 public:
  /// `total` counts over all sessions.
  explicit FailureLog(std::uint64_t* total) : total_(total) {}

  /// A call was refused here.
  OperandFailurePtr refused(absl::Status status, std::string operatorName, std::string site);
  /// A worker says that operator `root` failed: every report of it gives the same failure.
  OperandFailurePtr reported(OperatorNumber root, Rank rank, std::string site, const v1::Status& error);
  /// These operands have no value on some rank from operator `since` on.
  void setFailed(absl::Span<const OperandId> operands, OperatorNumber since, const OperandFailurePtr& failure,
                 const TensorTable& tensors);
  /// Of what was asked for behind operator `behind`. Null: no worker has said so.
  OperandFailurePtr failureOf(OperandId operand, OperatorNumber behind) const;
  void forget(OperandId operand) { failedOperands_.erase(operand); }

  /// Kept until some future delivers it, the oldest few.
  void remember(const OperandFailurePtr& failure);
  /// One that no future has delivered; null: none.
  OperandFailurePtr takeUnobserved();
  std::uint64_t unobserved() const;
  std::uint64_t count() const { return count_; }

 private:
  void countOne();

  std::uint64_t* const total_;
  std::uint64_t count_ = 0;
  absl::flat_hash_map<OperatorNumber, OperandFailurePtr> reported_;
  struct FailedOperand {
    OperandFailurePtr failure;
    OperatorNumber since = 0;
  };
  absl::flat_hash_map<OperandId, FailedOperand> failedOperands_;
  std::vector<OperandFailurePtr> unobserved_;  // oldest first
};

}  // namespace dtorch
