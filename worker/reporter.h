#pragma once
#include <cstddef>
#include <string>
#include <utility>
#include <zmq.hpp>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/ids.h"
#include "dtorch/v1/worker.pb.h"

namespace dtorch {

/// Sends reports to the daemon, all threads through one socket: what one thread reports before it wakes another one
/// arrives before what that one reports (a failure before the credit of its frame).
///
/// Thread: safe. Never blocks: the daemon's credit bounds what is on its way.
class Reporter {
 public:
  Reporter(zmq::context_t& context, const std::string& endpoint, Rank rank);
  /// Sends `report` and empties it.
  void send(v1::Report* report);

 private:
  const Rank rank_;
  absl::Mutex mutex_;
  zmq::socket_t socket_ ABSL_GUARDED_BY(mutex_);
};

/// What one thread has to report, collected until it matters.
///
/// Thread: its owner's.
class ReportBatch {
 public:
  explicit ReportBatch(Reporter& reporter) : reporter_(reporter) {}
  /// A new item, to be sent with the next flush, or earlier.
  v1::ReportItem* add() {
    if (report_.items_size() >= kMaxItems) flush();
    return report_.add_items();
  }
  void flush() {
    if (report_.items_size() > 0) reporter_.send(&report_);
  }

 private:
  static constexpr int kMaxItems = 256;
  Reporter& reporter_;
  v1::Report report_;
};

}  // namespace dtorch
