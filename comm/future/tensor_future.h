#pragma once
#include <ATen/core/Tensor.h>

#include <chrono>
#include <coroutine>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "comm/future/value_client.h"
#include "comm/future/value_server.h"

namespace dtorch {

/// A tensor that will be there, or an error in its place: what a TensorPromise of this process or of another one on
/// this host is resolved with. A copy is another handle on the same. All handles in one process get one tensor, which
/// is nobody's to write; large values from other processes are mapped privately.
///
/// Thread: safe.
class TensorFuture {
 public:
  using Deadline = std::chrono::steady_clock::time_point;
  using Result = absl::StatusOr<at::Tensor>;

  /// The value `id` of the process that `client` is connected to. It fails with UNAVAILABLE when that process ends.
  static TensorFuture fetch(ValueClient& client, std::uint64_t id);

  /// Whether there is a value or an error.
  bool isReady() const;
  /// False: neither, at the deadline.
  bool wait(Deadline deadline) const;
  /// Waits. Errors: the promise's; DEADLINE_EXCEEDED, after which one may ask again.
  Result get(Deadline deadline) const;
  /// Calls `callback` once there is a value or an error: at once, or later on the thread that resolves the promise.
  void onReady(std::function<void(const Result&)> callback) const;

  /// `co_await future` gives the Result. The coroutine goes on as a callback does.
  auto operator co_await() const;

 private:
  friend class TensorPromise;
  class State;
  explicit TensorFuture(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

/// The other end: resolved once, with a tensor or an error. The value is a snapshot: later changes of the tensor do not
/// show. Without a server it lives in this process alone; with one, other processes fetch it by ticket(), until the
/// promise is destroyed.
///
/// Thread: safe. Move-only. Destroyed unresolved, its futures get ABORTED.
class TensorPromise {
 public:
  TensorPromise();
  explicit TensorPromise(std::shared_ptr<ValueServer> server);
  TensorPromise(TensorPromise&&) noexcept = default;
  TensorPromise& operator=(TensorPromise&&) = delete;
  ~TensorPromise();

  TensorFuture future() const { return TensorFuture(state_); }
  /// What others need to fetch it; without a server it is empty.
  const ValueTicket& ticket() const { return ticket_; }
  /// Copies the value, whatever its strides, then makes it known. FAILED_PRECONDITION: it is resolved. A tensor that
  /// cannot be copied (no memory, no strided CPU tensor) resolves it with the error, which is returned too.
  absl::Status set(const TensorFuture::Result& value);

 private:
  std::shared_ptr<TensorFuture::State> state_;
  std::shared_ptr<ValueServer> server_;
  ValueTicket ticket_;
};

namespace internal {
struct FutureAwaiter {
  TensorFuture future;

  bool await_ready() const { return future.isReady(); }
  void await_suspend(std::coroutine_handle<> waiter) const {
    // The callback may end the coroutine, and with it this object: nothing of it is used afterwards.
    const TensorFuture kept = future;
    kept.onReady([waiter](const TensorFuture::Result&) { waiter.resume(); });
  }
  TensorFuture::Result await_resume() const { return future.get(TensorFuture::Deadline::min()); }
};
}  // namespace internal

inline auto TensorFuture::operator co_await() const { return internal::FutureAwaiter{*this}; }

}  // namespace dtorch
