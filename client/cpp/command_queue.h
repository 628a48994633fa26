#pragma once
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "dtorch/v1/client.pb.h"

namespace dtorch {

/// A session's commands on their way to the daemon, in order, gathered into batches. A batch is due when it is full,
/// when `delay` has passed since its first command, or when somebody asks for it.
/// Thread: safe; next() and recycle() belong to one sending thread.
class CommandQueue {
 public:
  struct Limits {
    int batchCommands = 256;
    std::size_t batchBytes = 1u << 20;  // of tensor data
    std::size_t waitingBatches = 8;     // append() blocks while as many wait to be sent
    std::chrono::microseconds delay{500};
  };

  /// Holds the queue: commands added through it stay together. Converts to false when the queue takes no more.
  class Appender {
   public:
    Appender(Appender&&) = default;
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

  /// Waits while the queue is full; stop() ends the wait.
  Appender append();
  /// Does not wait: for what must not block, such as a destructor.
  Appender appendAtOnce();
  /// What has been appended is due now.
  void flush();

  /// Waits for a batch that is due. nullptr: after finish() everything has been handed out, or stop() was called.
  std::unique_ptr<v1::ClientMessage> next();
  /// Gives a sent batch back, to be filled again.
  void recycle(std::unique_ptr<v1::ClientMessage> batch);

  /// Takes no more commands; next() hands out what is there. Idempotent.
  void finish();
  /// As finish(), and drops what is there. Idempotent.
  void stop();

 private:
  void sealLocked();
  std::unique_ptr<v1::ClientMessage> freshLocked();

  const Limits limits_;
  std::mutex mutex_;
  std::condition_variable room_;  // a batch was taken, or the queue closed
  std::condition_variable work_;  // for the sending thread
  bool open_ = true;
  bool flushing_ = false;  // the unsent batch is due
  std::unique_ptr<v1::ClientMessage> filling_;
  std::size_t fillingBytes_ = 0;
  std::chrono::steady_clock::time_point due_;  // of filling_, when it is not empty
  std::deque<std::unique_ptr<v1::ClientMessage>> waiting_;
  std::vector<std::unique_ptr<v1::ClientMessage>> spare_;
};

}  // namespace dtorch
