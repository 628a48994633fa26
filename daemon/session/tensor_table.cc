#include "daemon/session/tensor_table.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dtorch {
namespace {

// Failed tensors are under no quota of their own, but not without end.
constexpr std::size_t kSpareFailed = 1u << 16;

std::uint64_t bytesOf(const TensorLayout* layout) {
  return layout == nullptr ? 0 : static_cast<std::uint64_t>(layout->meta.bytes());
}

std::uint64_t addUpToMax(std::uint64_t a, std::uint64_t b) {
  return a > std::numeric_limits<std::uint64_t>::max() - b ? std::numeric_limits<std::uint64_t>::max() : a + b;
}

}  // namespace

const SessionTensor* TensorTable::find(TensorId tensor) const {
  const auto it = tensors_.find(tensor);
  return it == tensors_.end() ? nullptr : &it->second;
}

absl::Status TensorTable::checkNew(TensorId first, std::uint32_t count) const {
  if (tensors_.size() + count > limits_.maxTensors + kSpareFailed) {
    return absl::ResourceExhaustedError("the session holds more failed tensors than session.max_tensors: release some");
  }
  for (TensorId tensor = first; tensor != first + count; ++tensor) {
    if (tensor != 0 && !tensors_.contains(tensor)) continue;
    return absl::InvalidArgumentError(absl::StrCat("tensor id ", tensor, " is 0, or in use already"));
  }
  return absl::OkStatus();
}

absl::Status TensorTable::checkQuota(absl::Span<const TensorLayout* const> added, absl::Span<const int> aliases) const {
  std::uint64_t newBytes = bytesOf(incoming_);
  const std::size_t newTensors = added.size() + (incoming_ == nullptr ? 0 : 1);
  for (std::size_t i = 0; i < added.size(); ++i) {
    if (i >= aliases.size() || aliases[i] < 0) newBytes = addUpToMax(newBytes, bytesOf(added[i]));
  }
  const auto check = [](absl::string_view who, std::uint64_t held, absl::string_view what, absl::string_view key,
                        std::uint64_t limit) {
    if (held <= limit) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat(who, " would hold ", held, " ", what, ", more than ", key, " = ",
                                                     limit, "; release some tensors"));
  };
  absl::Status status =
      check("the session", tensors_.size() + newTensors, "tensors", "session.max_tensors", limits_.maxTensors);
  if (status.ok()) {
    status = check("the session", addUpToMax(bytes_, newBytes), "bytes", "session.max_bytes", limits_.maxBytes);
  }
  if (status.ok()) {
    status = check("all sessions together", totals_->tensors + newTensors, "tensors", "sessions.max_tensors",
                   limits_.maxAllTensors);
  }
  if (status.ok()) {
    status = check("all sessions together", addUpToMax(totals_->bytes, newBytes), "bytes", "sessions.max_bytes",
                   limits_.maxAllBytes);
  }
  return status;
}

absl::Status TensorTable::checkValue(const TensorLayout* layout) const {
  if (bytesOf(layout) <= limits_.maxBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the value takes ", bytesOf(layout), " bytes, more than session.max_bytes = ", limits_.maxBytes));
}

void TensorTable::add(TensorId tensor, SessionTensor operand) {
  if (operand.memory == nullptr) operand.bytes = bytesOf(operand.layout);
  if (operand.memory != nullptr && operand.id != 0) ++operand.memory->tensors;
  bytes_ += operand.bytes;
  totals_->bytes += operand.bytes;
  ++totals_->tensors;
  tensors_.emplace(tensor, std::move(operand));
}

void TensorTable::addFailed(TensorId first, std::uint32_t count, const OperandFailurePtr& failure,
                            const std::shared_ptr<OperandMemory>& memory) {
  for (std::uint32_t i = 0; i < count; ++i) add(first + i, {0, nullptr, failure, memory});
}

SessionTensor TensorTable::remove(TensorId tensor) {
  const auto it = tensors_.find(tensor);
  if (it == tensors_.end()) return {};
  SessionTensor operand = std::move(it->second);
  tensors_.erase(it);
  std::uint64_t freed = operand.bytes;
  if (OperandMemory* memory = operand.memory.get(); memory != nullptr && operand.id != 0) {
    memory->bytesOfGone += freed;
    freed = --memory->tensors == 0 ? std::exchange(memory->bytesOfGone, 0) : 0;
  }
  bytes_ -= freed;
  totals_->bytes -= freed;
  --totals_->tensors;
  return operand;
}

std::shared_ptr<OperandMemory> TensorTable::memoryOf(TensorId tensor) {
  SessionTensor& operand = tensors_.at(tensor);
  if (operand.memory == nullptr) setMemory(tensor, std::make_shared<OperandMemory>());
  return operand.memory;
}

void TensorTable::setMemory(TensorId tensor, std::shared_ptr<OperandMemory> memory) {
  SessionTensor& operand = tensors_.at(tensor);
  if (operand.id != 0) ++memory->tensors;
  operand.memory = std::move(memory);
}

std::shared_ptr<OperandMemory> TensorTable::copyViewOf(TensorId tensor) {
  std::shared_ptr<OperandMemory> viewed = memoryOf(tensor);
  if (viewed->viewed != nullptr) viewed = viewed->viewed;
  std::erase_if(viewed->copiedViews, [](const auto& view) { return view.expired(); });
  auto view = std::make_shared<OperandMemory>();
  viewed->copiedViews.push_back(view);
  view->viewed = std::move(viewed);
  return view;
}

bool TensorTable::hasCopiedViews(const OperandMemory& memory) {
  return std::any_of(memory.copiedViews.begin(), memory.copiedViews.end(),
                     [](const auto& view) { return !view.expired(); });
}

void TensorTable::failMemory(TensorId tensor, const OperandFailurePtr& failure) {
  const auto it = tensors_.find(tensor);
  if (it == tensors_.end()) return;
  SessionTensor& operand = it->second;
  if (operand.memory != nullptr) {
    fail(operand.memory->viewed == nullptr ? *operand.memory : *operand.memory->viewed, failure);
  } else if (operand.error == nullptr) {
    operand.error = failure;
  }
}

void TensorTable::fail(OperandMemory& memory, const OperandFailurePtr& failure) {
  if (memory.failure == nullptr) memory.failure = failure;
  loseCopiedViews(memory, failure);
}

void TensorTable::loseCopiedViews(OperandMemory& memory, const OperandFailurePtr& failure) {
  for (const std::weak_ptr<OperandMemory>& each : std::exchange(memory.copiedViews, {})) {
    const std::shared_ptr<OperandMemory> view = each.lock();
    if (view != nullptr && view->failure == nullptr) view->failure = failure;
  }
}

void TensorTable::addWriter(OperatorNumber number, GroupId group, std::shared_ptr<OperandMemory> memory,
                            const Executor& executor) {
  std::deque<Writer>& writers = writers_[group];
  while (!writers.empty() && writers.front().number < executor.oldestInFlight(group)) writers.pop_front();
  writers.push_back({number, std::move(memory)});
}

void TensorTable::failOperands(const absl::flat_hash_map<OperandId, OperandFailurePtr>& operands) {
  for (auto& [tensor, operand] : tensors_) {
    const auto it = operands.find(operand.id);
    if (it != operands.end() && operand.failure() == nullptr) operand.error = it->second;
  }
}

absl::flat_hash_set<OperandId> TensorTable::failedOperands() const {
  absl::flat_hash_set<OperandId> failed;
  for (const auto& [tensor, operand] : tensors_) {
    if (operand.id != 0 && operand.failure() != nullptr) failed.insert(operand.id);
  }
  return failed;
}

void TensorTable::failBroken(const OperandFailurePtr& failure, const Executor& executor) {
  for (auto& [tensor, operand] : tensors_) {
    if (operand.layout == nullptr || executor.error(operand.layout->mesh->group).ok()) continue;
    if (operand.error == nullptr) operand.error = failure;
  }
  absl::erase_if(writers_, [&](const auto& entry) { return !executor.error(entry.first).ok(); });
}

void TensorTable::writerFailed(OperatorNumber number, const OperandFailurePtr& failure) {
  const auto before = [](const Writer& writer, OperatorNumber wanted) { return writer.number < wanted; };
  for (const auto& [group, writers] : writers_) {
    auto it = std::lower_bound(writers.begin(), writers.end(), number, before);
    for (; it != writers.end() && it->number == number; ++it) {
      fail(*it->memory, failure);
    }
  }
}

std::vector<TensorId> TensorTable::ids() const {
  std::vector<TensorId> all;
  all.reserve(tensors_.size());
  for (const auto& [tensor, operand] : tensors_) all.push_back(tensor);
  return all;
}

absl::flat_hash_set<OperandId> TensorTable::operands() const {
  absl::flat_hash_set<OperandId> held;
  for (const auto& [tensor, operand] : tensors_) held.insert(operand.id);
  return held;
}

void TensorTable::addUsed(absl::flat_hash_set<const TensorLayout*>& layouts) const {
  for (const auto& [tensor, operand] : tensors_) {
    if (operand.layout != nullptr) layouts.insert(operand.layout);
  }
  if (incoming_ != nullptr) layouts.insert(incoming_);
}

}  // namespace dtorch
