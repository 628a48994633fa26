#pragma once
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "worker/doorbell.h"
#include "worker/spsc_queue.h"
#include "worker/stream_order.h"

namespace dtorch {

/// A thread that runs its tasks in order. While it sleeps, the producer may run some of them in its place: to wake a
/// thread takes longer than most kernels.
///
/// Thread: stage(), publish(), wake() and nextHere() by the message loop; next() by the stream's own thread; finish()
/// by who got the task; waitFor() by one other thread; the rest by any.
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

  /// `body` calls next() and finish() until stopped(). `name` has at most 15 characters.
  void start(const std::string& name, std::function<void()> body) {
    thread_ = std::thread([name, body = std::move(body)] {
      pthread_setname_np(pthread_self(), name.c_str());
      body();
    });
  }

  Task& stage() { return queue_.stage(); }
  /// Makes the staged task visible. A thread that sleeps hears of it by wake() only.
  void publish() { queue_.publish(); }
  void wake() {
    if (queue_.published() != done_.load()) arrival_.ring();
  }

  /// The next task, and the turn to run it, until finish(); waits for it, for `timeout` at most. Null: none came, or
  /// the stream was stopped.
  Task* next(std::chrono::nanoseconds timeout = Doorbell::kForever) {
    const auto ready = [&] { return stopped_.load() || queue_.published() != done_.load(); };
    for (;;) {
      if (!ready() && !arrival_.waitUntil(ready, timeout)) return nullptr;
      if (stopped()) return nullptr;
      turn_.lock();
      if (Task* task = queue_.front()) return task;
      turn_.unlock();
    }
  }
  /// Likewise, if the stream's thread sleeps and the next task `suits`. Does not wait.
  template <typename Suits>
  Task* nextHere(Suits suits) {
    if (stopped() || !arrival_.asleep() || !turn_.try_lock()) return nullptr;
    Task* task = queue_.front();
    if (task != nullptr && suits(*task)) return task;
    turn_.unlock();
    return nullptr;
  }
  /// Calls `body`, unless a task runs or is being looked at. Whether it did.
  template <typename Body>
  bool betweenTasks(Body body) {
    if (!turn_.try_lock()) return false;
    body();
    turn_.unlock();
    return true;
  }
  /// The task that next() or nextHere() returned is not run, now or later.
  void giveUp() { turn_.unlock(); }
  bool stopped() const { return stopped_.load(); }
  /// The task that next() or nextHere() returned has run: drops it and lets those go on that wait for it.
  void finish() {
    queue_.pop();
    done_.store(done_.load(std::memory_order_relaxed) + 1);
    turn_.unlock();
    completion_.ring();
  }

  /// Waits until the stream has run its first `ticket` tasks. False: the stream was stopped before.
  bool waitFor(Ticket ticket) {
    if (done() < ticket) {
      completion_.waitUntil([&] { return done_.load() >= ticket || stopped_.load(); });
    }
    return done() >= ticket;
  }

  /// Drops what is queued; the running task ends by itself. Idempotent.
  void stop() {
    stopped_.store(true);
    arrival_.ring();
    completion_.ring();
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
  Doorbell arrival_;
  alignas(64) std::atomic<Ticket> done_{0};
  std::atomic<bool> stopped_{false};
  Doorbell completion_;
  std::mutex turn_;  // to use the queue's front and run its task
  std::thread thread_;
};

}  // namespace dtorch
