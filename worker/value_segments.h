#pragma once
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "core/ids.h"
#include "shm/segment.h"

namespace dtorch {

/// Fetched values that lie in shared memory until the daemon has taken them.
///
/// Thread: safe.
class ValueSegments {
 public:
  void keep(FutureId future, Segment segment) {
    const absl::MutexLock lock(&mutex_);
    segments_.insert_or_assign(future, std::move(segment));
  }
  void drop(FutureId future) {
    const absl::MutexLock lock(&mutex_);
    segments_.erase(future);
  }

 private:
  absl::Mutex mutex_;
  absl::flat_hash_map<FutureId, Segment> segments_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace dtorch
