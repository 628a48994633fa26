#pragma once
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "core/ids.h"

namespace dtorch {

/// Whether all workers are there, and who waits for that.
///
/// Thread: the controller loop's.
class WorkersHealth {
 public:
  enum class State : std::uint8_t {
    kUp,       // all workers hear each other
    kMissing,  // some are to come
    kFailed,   // one will not
  };
  struct Waiter {
    SessionId session = 0;
    FutureId future = 0;
    std::function<void(const absl::Status&)> answer;
  };

  State state() const { return state_; }
  /// Answers when all workers are up, with OK, or when one is known not to come back, with why.
  void await(Waiter waiter) {
    waiters_.push_back(std::move(waiter));
    settle();
  }
  void cancel(SessionId session, FutureId future) {
    std::erase_if(waiters_, [&](const Waiter& w) { return w.session == session && w.future == future; });
  }
  void dropSession(SessionId session) {
    std::erase_if(waiters_, [&](const Waiter& w) { return w.session == session; });
  }
  /// `why`: of kFailed.
  void set(State state, absl::Status why = absl::OkStatus()) {
    state_ = state;
    why_ = std::move(why);
    settle();
  }

 private:
  void settle() {
    if (state_ == State::kMissing) return;
    std::vector<Waiter> settled;
    settled.swap(waiters_);
    for (const Waiter& waiter : settled) waiter.answer(why_);
  }

  State state_ = State::kMissing;
  absl::Status why_;
  std::vector<Waiter> waiters_;
};

}  // namespace dtorch
