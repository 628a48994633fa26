#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <atomic>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "worker/failure.h"

namespace dtorch {

/// Memory that an operator was to write to and did not: every tensor that lies in it has no value any more. Kept until
/// the memory is freed.
///
/// Thread: safe.
class LostMemory {
 public:
  /// Does nothing for an undefined tensor, or memory that is lost already.
  void add(const at::Tensor& tensor, const FailurePtr& failure);
  /// Null: the tensor's memory is in order.
  FailurePtr failureOf(const at::Tensor& tensor) const;

 private:
  using Storage = c10::weak_intrusive_ptr<c10::StorageImpl>;
  std::atomic<bool> any_{false};  // spares all who come before the first failure the lock
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<const c10::StorageImpl*, std::pair<Storage, FailurePtr>> lost_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace dtorch
