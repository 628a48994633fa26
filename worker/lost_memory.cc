#include "worker/lost_memory.h"

namespace dtorch {

void LostMemory::add(const at::Tensor& tensor, const FailurePtr& failure) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  const c10::Storage& storage = tensor.storage();
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  const absl::MutexLock lock(&mutex_);
  // The weak references keep their addresses from being used again.
  absl::erase_if(lost_, [](const auto& entry) { return entry.second.first.expired(); });
  lost_.try_emplace(impl, Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(impl)), failure);
  any_.store(true, std::memory_order_release);
}

FailurePtr LostMemory::failureOf(const at::Tensor& tensor) const {
  if (!any_.load(std::memory_order_acquire) || !tensor.defined() || !tensor.has_storage()) return nullptr;
  const absl::MutexLock lock(&mutex_);
  const auto it = lost_.find(tensor.storage().unsafeGetStorageImpl());
  return it == lost_.end() ? nullptr : it->second.second;
}

}  // namespace dtorch
