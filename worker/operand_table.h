#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "core/ids.h"
#include "worker/failure.h"
#include "worker/stream_order.h"

namespace dtorch {

/// One local tensor, or the failure in its place. The message loop makes it empty and says which task fills it in;
/// tasks that follow in the streams' order (WORKER-1) read it. It lives as long as the table or a task refers to it.
struct Operand : c10::intrusive_ptr_target {
  explicit Operand(OperandId operand, StreamKind stream, Ticket task) : id(operand), producer(stream), ticket(task) {}

  void set(at::Tensor tensor) {
    bytes.store(static_cast<std::int64_t>(tensor.nbytes()), std::memory_order_relaxed);
    value = std::move(tensor);
  }
  void fail(FailurePtr why) {
    bytes.store(0, std::memory_order_relaxed);
    value.reset();
    failure = std::move(why);
  }

  const OperandId id;
  const StreamKind producer;
  const Ticket ticket;
  // Written by tasks only.
  at::Tensor value;
  FailurePtr failure;
  std::atomic<std::int64_t> bytes{0};
};
using OperandRef = c10::intrusive_ptr<Operand>;

/// The operands that this rank holds, by id.
///
/// Thread: the message loop's.
class OperandTable {
 public:
  /// Null: no such operand here.
  const OperandRef* find(OperandId id) const {
    const auto it = operands_.find(id);
    return it == operands_.end() ? nullptr : &it->second;
  }
  /// Puts an empty operand in place, to be filled in by task `ticket` of `producer`.
  const OperandRef& add(OperandId id, StreamKind producer, Ticket ticket) {
    OperandRef& operand = operands_[id];
    operand = c10::make_intrusive<Operand>(id, producer, ticket);
    return operand;
  }
  /// Drops the table's reference; tasks in flight keep theirs.
  void discard(OperandId id) { operands_.erase(id); }

  std::size_t size() const { return operands_.size(); }
  std::int64_t bytes() const {
    std::int64_t sum = 0;
    for (const auto& [id, operand] : operands_) sum += operand->bytes.load(std::memory_order_relaxed);
    return sum;
  }

 private:
  absl::flat_hash_map<OperandId, OperandRef> operands_;
};

}  // namespace dtorch
