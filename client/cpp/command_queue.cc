#include "client/cpp/command_queue.h"

#include <utility>

namespace dtorch {

CommandQueue::CommandQueue(Limits limits) : limits_(limits) { filling_ = freshLocked(); }

void CommandQueue::onChange(std::function<void()> sender) {
  const std::lock_guard lock(senderMutex_);
  sender_ = std::move(sender);
}

CommandQueue::Appender::~Appender() {
  if (!lock_.owns_lock()) return;
  const int commands = queue_.filling_->batch().commands_size();
  if (commands >= queue_.limits_.batchCommands || queue_.fillingBytes_ >= queue_.limits_.batchBytes)
    queue_.sealLocked();
  queue_.notify(std::move(lock_));
}

v1::Command* CommandQueue::Appender::add(std::size_t bytes) {
  v1::CommandBatch* batch = queue_.filling_->mutable_batch();
  if (batch->commands_size() == 0) {
    queue_.due_ = std::chrono::steady_clock::now() + queue_.limits_.delay;
    queue_.changed_ = true;
  }
  queue_.fillingBytes_ += bytes;
  return batch->add_commands();
}

v1::Command* CommandQueue::Appender::last() {
  v1::CommandBatch* batch = queue_.filling_->mutable_batch();
  return batch->commands_size() == 0 ? nullptr : batch->mutable_commands(batch->commands_size() - 1);
}

CommandQueue::Appender CommandQueue::append() {
  std::unique_lock lock(mutex_);
  room_.wait(lock, [this] { return waiting_.size() < limits_.waitingBatches || !open_; });
  return {*this, std::move(lock)};
}

CommandQueue::Appender CommandQueue::appendAtOnce() { return {*this, std::unique_lock(mutex_)}; }

void CommandQueue::flush() {
  std::unique_lock lock(mutex_);
  if (filling_->batch().commands_size() == 0) return;
  changed_ = true;
  flushing_ = true;
  notify(std::move(lock));
}

CommandQueue::Next CommandQueue::next() {
  const std::lock_guard lock(mutex_);
  Next next;
  if (waiting_.empty()) {
    if (filling_->batch().commands_size() == 0) {
      next.drained = !open_;
      return next;
    }
    if (!flushing_ && open_ && std::chrono::steady_clock::now() < due_) {
      next.due = due_;
      return next;
    }
    sealLocked();
  }
  next.batch = std::move(waiting_.front());
  waiting_.pop_front();
  room_.notify_all();
  return next;
}

void CommandQueue::recycle(std::unique_ptr<v1::ClientMessage> batch) {
  // Cleared commands keep their memory, so that filling the batch again allocates next to nothing.
  batch->mutable_batch()->mutable_commands()->Clear();
  const std::lock_guard lock(mutex_);
  if (spare_.size() <= limits_.waitingBatches) spare_.push_back(std::move(batch));
}

void CommandQueue::finish() {
  std::unique_lock lock(mutex_);
  open_ = false;
  changed_ = true;
  room_.notify_all();
  notify(std::move(lock));
}

void CommandQueue::stop() {
  std::unique_lock lock(mutex_);
  open_ = false;
  changed_ = true;
  waiting_.clear();
  filling_ = freshLocked();
  room_.notify_all();
  notify(std::move(lock));
}

void CommandQueue::notify(std::unique_lock<std::mutex> lock) {
  const bool changed = std::exchange(changed_, false);
  lock.unlock();
  if (!changed) return;
  const std::lock_guard calling(senderMutex_);
  if (sender_) sender_();
}

void CommandQueue::sealLocked() {
  waiting_.push_back(std::move(filling_));
  filling_ = freshLocked();
  fillingBytes_ = 0;
  flushing_ = false;
  changed_ = true;
}

std::unique_ptr<v1::ClientMessage> CommandQueue::freshLocked() {
  if (spare_.empty()) {
    auto batch = std::make_unique<v1::ClientMessage>();
    batch->mutable_batch();
    return batch;
  }
  std::unique_ptr<v1::ClientMessage> batch = std::move(spare_.back());
  spare_.pop_back();
  return batch;
}

}  // namespace dtorch
