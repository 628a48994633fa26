#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

namespace dtorch {

/// An unbounded first-in, first-out queue between two threads. Elements are made and used in place, in chunks; the
/// consumer's last empty chunk goes back to the producer, so that a steady flow allocates nothing.
///
/// Thread: stage() and publish() by one producer; front() and pop() by one consumer at a time; published() by any
/// thread.
template <typename T>
class SpscQueue {
 public:
  SpscQueue() : head_(new Chunk), tail_(head_) {}
  SpscQueue(const SpscQueue&) = delete;
  SpscQueue& operator=(const SpscQueue&) = delete;
  ~SpscQueue() {
    while (front() != nullptr) pop();
    delete head_;
    delete spare_.load();
  }

  /// A fresh element, not yet visible to the consumer; publish() must follow.
  T& stage() {
    if (tailIndex_ == kChunkElements) {
      Chunk* chunk = spare_.exchange(nullptr, std::memory_order_acquire);
      if (chunk == nullptr) chunk = new Chunk;
      tail_->next = chunk;  // made visible by publish()
      tail_ = chunk;
      tailIndex_ = 0;
    }
    return *new (tail_->at(tailIndex_)) T();
  }
  /// Makes the staged element visible.
  void publish() {
    ++tailIndex_;
    published_.store(published_.load(std::memory_order_relaxed) + 1);
  }

  /// The oldest element; null without one.
  T* front() {
    if (popped_ == seen_) {
      seen_ = published_.load();
      if (popped_ == seen_) return nullptr;
    }
    if (headIndex_ == kChunkElements) {
      Chunk* empty = head_;
      head_ = empty->next;
      headIndex_ = 0;
      empty->next = nullptr;
      delete spare_.exchange(empty, std::memory_order_acq_rel);
    }
    return std::launder(reinterpret_cast<T*>(head_->at(headIndex_)));
  }
  /// Destroys the oldest element.
  void pop() {
    std::launder(reinterpret_cast<T*>(head_->at(headIndex_)))->~T();
    ++headIndex_;
    ++popped_;
  }

  /// How many elements were published so far. Sequentially consistent, as a Doorbell's condition must be.
  std::uint64_t published() const { return published_.load(); }

 private:
  static constexpr std::size_t kChunkElements = 128;
  struct Chunk {
    alignas(T) std::byte elements[kChunkElements * sizeof(T)];
    Chunk* next = nullptr;
    void* at(std::size_t index) { return elements + index * sizeof(T); }
  };

  // The consumer's.
  alignas(64) Chunk* head_;
  std::size_t headIndex_ = 0;
  std::uint64_t popped_ = 0;
  std::uint64_t seen_ = 0;
  // The producer's.
  alignas(64) Chunk* tail_;
  std::size_t tailIndex_ = 0;
  std::atomic<std::uint64_t> published_{0};
  // Shared.
  alignas(64) std::atomic<Chunk*> spare_{nullptr};
};

}  // namespace dtorch
