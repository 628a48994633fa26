#pragma once
#include <chrono>
#include <cstdint>
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
  Reporter(zmq::context_t& context, const std::string& endpoint, Rank rank, std::uint64_t incarnation);
  /// Sends `report` and empties it.
  void send(v1::Report* report);

 private:
  const Rank rank_;
  const std::uint64_t incarnation_;
  absl::Mutex mutex_;
  zmq::socket_t socket_ ABSL_GUARDED_BY(mutex_);
};

/// What one thread has to report, collected until it matters: a message to the daemon costs more than a kernel.
///
/// Thread: its owner's.
class ReportBatch {
  using Clock = std::chrono::steady_clock;

 public:
  /// How long the credit of a frame may wait for company.
  static constexpr std::chrono::milliseconds kCreditDelay{1};

  explicit ReportBatch(Reporter& reporter) : reporter_(reporter) {}
  /// A new item that somebody waits for: it leaves before anything that may take long.
  v1::ReportItem* addAwaited() {
    awaited_ = true;
    return add();
  }
  /// A new item that leaves before this thread has nothing else to do.
  v1::ReportItem* add() {
    if (report_.items_size() >= kMaxItems) flush();
    return report_.add_items();
  }
  /// A new item that gives credit back: it leaves after kCreditDelay, or with others.
  v1::ReportItem* addCredit() {
    v1::ReportItem* item = add();
    if (++credits_ == 1) creditDue_ = Clock::now() + kCreditDelay;
    return item;
  }

  /// Before what may take long.
  void flushDue() {
    if (awaited_ || (credits_ > 0 && Clock::now() >= creditDue_)) flush();
  }
  /// When there is no other task.
  void flushAllButCredit() {
    if (awaited_ || report_.items_size() > credits_) flush();
  }
  void flush() {
    if (report_.items_size() > 0) reporter_.send(&report_);
    credits_ = 0;
    awaited_ = false;
  }
  bool empty() const { return report_.items_size() == 0; }

 private:
  static constexpr int kMaxItems = 256;
  Reporter& reporter_;
  v1::Report report_;
  int credits_ = 0;  // of the items
  Clock::time_point creditDue_;
  bool awaited_ = false;
};

}  // namespace dtorch
