// What ends calls before they are done: cancels and time limits.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/session/client_session.h"

namespace dtorch {
namespace {

absl::Status lateBy(std::uint32_t timeoutMs) {
  return absl::DeadlineExceededError(absl::StrCat("it was not done within ", timeoutMs, " ms, its time limit"));
}

}  // namespace

absl::Status checkTime(const TimeLimit& limit) {
  if (limit.ms == 0 || std::chrono::steady_clock::now() <= limit.end) return absl::OkStatus();
  return lateBy(limit.ms);
}

bool ClientSession::cancelCalls(std::uint64_t token, std::uint64_t serial) {
  if (token != cancelToken_ || serial <= cancelWanted_) return false;
  cancelWanted_ = serial;
  cancelInFlight();
  return true;
}

void ClientSession::reachCancel(std::uint64_t serial) {
  if (serial > cancelWanted_) {
    cancelWanted_ = serial;
    cancelInFlight();
  }
  cancelDone_ = std::max(cancelDone_, serial);
}

void ClientSession::cancelInFlight() {
  services_->graph.retireAll([this](GroupId group) { return services_->executor->oldestInFlight(group); });
  std::vector<EndingCall> all;
  for (const GraphOperator* op : services_->graph.ofSession(id_, 0)) {
    all.push_back({op, [this] { return cancelled_; }});
  }
  endCalls(all, true);
  forgetTimeLimits();
  services_->futures->failAll(id_, cancelled_.get());
  absl::flat_hash_set<std::shared_ptr<PendingFence>> synchronizes;
  for (const auto& [fence, waiting] : fences_) synchronizes.insert(waiting.pending);
  fences_.clear();
  for (const auto& each : synchronizes) FutureTable::sendError(channel_.get(), each->future, cancelled_.get());
}

TimeLimit ClientSession::timeLimit(const v1::Command& command) const {
  return {command.timeout_ms(), arrived_ + std::chrono::milliseconds(command.timeout_ms())};
}

bool ClientSession::waitWithin(const TimeLimit& limit) {
  if (limit.ms == 0 || waitsUntil_ == limit.end) return false;
  waitsUntil_ = limit.end;
  hasTimeLimits_ = true;
  services_->deadlines.emplace(limit.end, CallDeadline{id_});
  return false;
}

void ClientSession::limitTime(const TimeLimit& limit, OperatorNumber number, std::uint32_t site) {
  if (limit.ms == 0) return;
  // Its frame ends with it: that it is done is known as soon as it is.
  services_->executor->flush();
  hasTimeLimits_ = true;
  CallDeadlines& deadlines = services_->deadlines;
  deadlines.emplace(limit.end, CallDeadline{id_, number, limit.ms, site});
  if (deadlines.size() < services_->sweepDeadlinesAt) return;
  LogicalGraph& graph = services_->graph;
  graph.retireAll([this](GroupId group) { return services_->executor->oldestInFlight(group); });
  std::erase_if(deadlines, [&](const auto& entry) {
    return entry.second.number != 0 && graph.find(entry.second.number) == nullptr;
  });
  services_->sweepDeadlinesAt = std::max<std::size_t>(4096, 2 * deadlines.size());
}

void ClientSession::forgetTimeLimits() {
  if (!std::exchange(hasTimeLimits_, false)) return;
  std::erase_if(services_->deadlines, [this](const auto& entry) { return entry.second.session == id_; });
}

void ClientSession::deadlinesPassed(const std::vector<CallDeadline>& calls) {
  std::vector<EndingCall> late;
  const absl::flat_hash_set<OperandId> failed = tensors_.failedOperands();
  for (const CallDeadline& call : calls) {
    const GraphOperator* op = services_->graph.find(call.number);
    if (op == nullptr || failed.contains(op->firstOutput)) continue;
    late.push_back({op, [this, op, call] { return fail(lateBy(call.timeoutMs), std::string(op->name), call.site); }});
  }
  std::sort(late.begin(), late.end(),
            [](const EndingCall& a, const EndingCall& b) { return a.op->number < b.op->number; });
  endCalls(late, false);
}

void ClientSession::endCalls(const std::vector<EndingCall>& ending, bool allBetween) {
  if (ending.empty()) return;
  absl::flat_hash_map<OperandId, OperandFailurePtr> made;  // by calls that end
  FutureTable::EndedOperands ended;
  absl::flat_hash_set<GroupId> groups;
  std::vector<OperatorNumber> numbers;
  auto next = ending.begin();
  for (const GraphOperator* op : services_->graph.ofSession(id_, ending.front().op->number)) {
    OperandFailurePtr failure;
    for (const OperandId input : op->inputs) {
      if (const auto it = ended.find(input); failure == nullptr && it != ended.end()) failure = it->second.failure;
    }
    if (next != ending.end() && next->op == op) {
      if (failure == nullptr) failure = next->failure();
      groups.insert(op->group);
      numbers.push_back(op->number);
      ++next;
    }
    if (failure == nullptr) continue;
    for (std::uint32_t o = 0; o < op->outputs; ++o) {
      made.emplace(op->firstOutput + o, failure);
      ended.try_emplace(op->firstOutput + o, FutureTable::EndedOperand{failure, op->number});
    }
    for (const OperandId operand : op->written) {
      ended.try_emplace(operand, FutureTable::EndedOperand{failure, op->number});
    }
    tensors_.writerFailed(op->number, failure);
    if (awaited_ && awaited_->number == op->number) failAwaited(failure);
  }
  tensors_.failOperands(made);
  services_->futures->failOperands(id_, ended);
  services_->executor->cancel(groups, id_, numbers.front(), numbers.back(),
                              allBetween ? absl::Span<const OperatorNumber>() : numbers);
}

}  // namespace dtorch
