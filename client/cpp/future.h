#pragma once
#include <chrono>
#include <memory>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/future_state.h"

namespace dtorch {

/// A value that the daemon will send, or the first error that it depends on. Cheap to copy; may be read many times.
/// Thread: safe. When the last copy goes before the value came, the daemon is told not to send it.
///
/// Errors: those of the operators (see operator_error.h); UNAVAILABLE when the connection is lost, which ends every
/// wait.
template <typename T>
class Future {
 public:
  using Result = std::conditional_t<std::is_void_v<T>, absl::Status, absl::StatusOr<T>>;

  explicit Future(std::shared_ptr<FutureState> state) : state_(std::move(state)) {}

  /// Whether get() would return at once. Sends what is batched, so that polling makes progress.
  bool poll() const { return state_->poll(); }
  /// Waits until the value is here or the connection ends.
  Result get() const {
    state_->wait();
    return result();
  }
  /// DEADLINE_EXCEEDED when there is no value in time; the future stays good and may be waited for again.
  Result waitUntil(std::chrono::steady_clock::time_point deadline) const {
    if (!state_->waitUntil(deadline)) return absl::DeadlineExceededError("the value did not arrive in the time given");
    return result();
  }
  Result wait(std::chrono::steady_clock::duration timeout) const {
    return waitUntil(std::chrono::steady_clock::now() + timeout);
  }

  /// For event loops: a descriptor that is readable once get() would return at once, as long as a copy of this future
  /// lives; -1: the process has none left.
  int event() const { return state_->event(); }

 private:
  Result result() const {
    if constexpr (std::is_void_v<T>) {
      return state_->status();
    } else {
      if (!state_->status().ok()) return state_->status();
      return T(state_->reply());
    }
  }
  std::shared_ptr<FutureState> state_;
};

}  // namespace dtorch
