#pragma once
#include <atomic>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace dtorch {

/// Asks the message loop to end, and says why; the first reason counts.
///
/// Thread: safe. Owns: an eventfd that polls as readable once requested.
class StopRequest {
 public:
  StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;
  ~StopRequest();

  void request(const absl::Status& why);
  bool requested() const { return requested_.load(std::memory_order_acquire); }
  absl::Status why() const;
  int fd() const { return fd_; }

 private:
  const int fd_;
  std::atomic<bool> requested_{false};
  mutable absl::Mutex mutex_;
  absl::Status why_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace dtorch
