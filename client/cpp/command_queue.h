#pragma once
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "dtorch/v1/client.pb.h"

namespace dtorch {

/// A session's commands on their way to the daemon, in order, gathered into batches. A batch is due when it is full,
/// when `delay` has passed since its first command, or when somebody asks for it.
/// Nothing here waits but append(), for room: who sends asks next() whenever it is told to.
/// Thread: safe.
class CommandQueue {
 public:
  struct Limits {
    int batchCommands = 256;
    std::size_t batchBytes = 1u << 20;  // of tensor data
    std::size_t waitingBatches = 8;     // append() blocks while as many wait to be sent
    std::chrono::microseconds delay{2000};
  };

  /// Holds the queue: commands added through it stay together. Converts to false when the queue takes no more.
  class Appender {
   public:
    Appender(Appender&&) = default;
    /// Tells the sender, if it may have something to do now.
    ~Appender();
    explicit operator bool() const { return queue_.open_; }
    /// A cleared command at the end. `bytes` of tensor data will be put into it.
    v1::Command* add(std::size_t bytes = 0);
    /// The last command of the unsent batch; nullptr if it is empty.
    v1::Command* last();

   private:
    friend class CommandQueue;
    Appender(CommandQueue& queue, std::unique_lock<std::mutex> lock) : queue_(queue), lock_(std::move(lock)) {}
    CommandQueue& queue_;
    std::unique_lock<std::mutex> lock_;
  };

  explicit CommandQueue(Limits limits);
  /// `sender` is called, without the queue's lock, when next() may have a new answer. After onChange(nullptr) has
  /// returned it is not called any more.
  void onChange(std::function<void()> sender);

  /// Waits while the queue is full; stop() ends the wait.
  Appender append();
  /// Does not wait: for what must not block, such as a destructor.
  Appender appendAtOnce();
  /// What has been appended is due now.
  void flush();

  struct Next {
    std::unique_ptr<v1::ClientMessage> batch;                  // due now; nullptr: none
    std::optional<std::chrono::steady_clock::time_point> due;  // without a batch: when to ask again
    bool drained = false;  // the queue is closed, and everything has been handed out or dropped
  };
  Next next();
  /// Gives a sent batch back, to be filled again.
  void recycle(std::unique_ptr<v1::ClientMessage> batch);

  /// Takes no more commands; next() hands out what is there. Idempotent.
  void finish();
  /// As finish(), and drops what is there. Idempotent.
  void stop();

 private:
  /// Lets go of the lock, then tells the sender.
  void notify(std::unique_lock<std::mutex> lock);
  void sealLocked();
  std::unique_ptr<v1::ClientMessage> freshLocked();

  const Limits limits_;
  std::mutex mutex_;
  std::condition_variable room_;  // a batch was taken, or the queue closed
  std::mutex senderMutex_;        // guards sender_, and its calls; taken without mutex_
  std::function<void()> sender_;
  bool changed_ = false;  // the sender shall be told
  bool open_ = true;
  bool flushing_ = false;  // the unsent batch is due
  std::unique_ptr<v1::ClientMessage> filling_;
  std::size_t fillingBytes_ = 0;
  std::chrono::steady_clock::time_point due_;  // of filling_, when it is not empty
  std::deque<std::unique_ptr<v1::ClientMessage>> waiting_;
  std::vector<std::unique_ptr<v1::ClientMessage>> spare_;
};

}  // namespace dtorch
