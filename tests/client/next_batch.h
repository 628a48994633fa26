#pragma once
#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>

#include "client/cpp/command_queue.h"

namespace dtorch {

/// Waits for the next batch that is due; nullptr once the queue is drained. Throws after 30 s.
inline std::unique_ptr<v1::ClientMessage> nextBatch(CommandQueue& queue) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (std::chrono::steady_clock::now() < deadline) {
    CommandQueue::Next next = queue.next();
    if (next.batch != nullptr || next.drained) return std::move(next.batch);
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  throw std::runtime_error("no batch became due");
}

}  // namespace dtorch
