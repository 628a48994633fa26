#pragma once
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "worker/doorbell.h"
#include "worker/spsc_queue.h"
#include "worker/stream_order.h"

namespace dtorch {

/// A thread that runs its tasks in order.
///
/// Thread: stage() and publish() by the message loop; next() and finish() by the stream's own thread; waitFor() by one
/// other thread; the rest by any.
template <typename Task>
class KernelStream {
 public:
  KernelStream() = default;
  KernelStream(const KernelStream&) = delete;
  KernelStream& operator=(const KernelStream&) = delete;
  ~KernelStream() {
    stop();
    join();
  }

  /// `body` calls next() and finish() until next() returns null. `name` has at most 15 characters.
  void start(const std::string& name, std::function<void()> body) {
    thread_ = std::thread([name, body = std::move(body)] {
      pthread_setname_np(pthread_self(), name.c_str());
      body();
    });
  }

  Task& stage() { return queue_.stage(); }
  void publish() { queue_.publish(); }
  /// The next task; waits for it, for `timeout` at most. Null: none came, or the stream was stopped.
  Task* next(std::chrono::nanoseconds timeout = Doorbell::kForever) { return queue_.next(timeout); }
  bool stopped() const { return queue_.closed(); }
  /// The task that next() returned has run: drops it and lets those go on that wait for it.
  void finish() {
    queue_.pop();
    done_.store(done_.load(std::memory_order_relaxed) + 1);
    doorbell_.ring();
  }

  /// Waits until the stream has run its first `ticket` tasks. False: the stream was stopped before.
  bool waitFor(Ticket ticket) {
    if (done() < ticket) {
      doorbell_.waitUntil([&] { return done_.load() >= ticket || stopped_.load(); });
    }
    return done() >= ticket;
  }

  /// Drops what is queued; the running task ends by itself. Idempotent.
  void stop() {
    stopped_.store(true);
    queue_.close();
    doorbell_.ring();
  }
  void join() {
    if (thread_.joinable()) thread_.join();
  }

  Ticket done() const { return done_.load(std::memory_order_acquire); }
  /// Tasks that have not run yet, the running one included.
  std::uint64_t queued() const {
    const Ticket done = done_.load(std::memory_order_acquire);
    return queue_.published() - done;
  }

 private:
  SpscQueue<Task> queue_;
  alignas(64) std::atomic<Ticket> done_{0};
  std::atomic<bool> stopped_{false};
  Doorbell doorbell_;
  std::thread thread_;
};

}  // namespace dtorch
