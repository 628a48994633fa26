#include "daemon/session/failure_log.h"

#include <algorithm>
#include <utility>

#include "proto/codec.h"

namespace dtorch {
namespace {

// Failures nobody asked about: so many are remembered, the rest only counted.
constexpr std::size_t kRemembered = 1024;
// Failures of operands that a session may have released by then.
constexpr std::size_t kUnowned = 4096;

}  // namespace

void FailureLog::countOne() {
  ++count_;
  ++*total_;
}

OperandFailurePtr FailureLog::refused(absl::Status status, std::string operatorName, std::string site) {
  auto failure =
      std::make_shared<OperandFailure>(OperandFailure{std::move(status), std::move(operatorName), -1, std::move(site)});
  countOne();
  remember(failure);
  return failure;
}

OperandFailurePtr FailureLog::reported(OperatorNumber root, Rank rank, std::string site, const v1::Status& error) {
  const auto it = reported_.find(root);
  if (it != reported_.end()) return it->second;
  // Their dependents have all been reported by now, or give their own root's name again.
  if (reported_.size() >= kRemembered) reported_.clear();
  absl::Status status = fromWire(error);
  // What a worker cannot reach is another worker.
  if (absl::IsUnavailable(status)) status = absl::Status(kWorkerLost, status.message());
  auto failure =
      std::make_shared<OperandFailure>(OperandFailure{std::move(status), error.operator_name(), rank, std::move(site)});
  countOne();
  // The loss of a worker is remembered as such, once, not with each operator that needed it.
  if (failure->status.code() != kWorkerLost) remember(failure);
  reported_[root] = failure;
  return failure;
}

void FailureLog::setFailed(absl::Span<const OperandId> operands, OperatorNumber since, const OperandFailurePtr& failure,
                           const TensorTable& tensors) {
  for (const OperandId operand : operands) {
    FailedOperand& failed = failedOperands_.try_emplace(operand, FailedOperand{failure, since}).first->second;
    // Ranks report in any order.
    if (since < failed.since) failed = {failure, since};
  }
  if (failedOperands_.size() <= 2 * tensors.size() + kUnowned) return;
  // A worker's report may come after the release of the operand, or be of one that no tensor stands for (a gathered
  // value).
  const absl::flat_hash_set<OperandId> held = tensors.operands();
  absl::erase_if(failedOperands_, [&](const auto& entry) { return !held.contains(entry.first); });
}

OperandFailurePtr FailureLog::failureOf(OperandId operand, OperatorNumber behind) const {
  const auto it = failedOperands_.find(operand);
  return it == failedOperands_.end() || it->second.since > behind ? nullptr : it->second.failure;
}

void FailureLog::remember(const OperandFailurePtr& failure) {
  if (unobserved_.size() >= kRemembered) {
    std::erase_if(unobserved_, [](const OperandFailurePtr& f) { return f->observed; });
  }
  if (unobserved_.size() < kRemembered) unobserved_.push_back(failure);
}

OperandFailurePtr FailureLog::takeUnobserved() {
  std::erase_if(unobserved_, [](const OperandFailurePtr& f) { return f->observed; });
  if (unobserved_.empty()) return nullptr;
  OperandFailurePtr first = std::move(unobserved_.front());
  unobserved_.erase(unobserved_.begin());
  return first;
}

std::uint64_t FailureLog::unobserved() const {
  return static_cast<std::uint64_t>(
      std::count_if(unobserved_.begin(), unobserved_.end(), [](const OperandFailurePtr& f) { return !f->observed; }));
}

}  // namespace dtorch
