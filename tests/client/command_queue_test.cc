#include "client/cpp/command_queue.h"

#include <atomic>
#include <thread>
#include <vector>

#include "tests/catch.h"
#include "tests/client/next_batch.h"

namespace dtorch {
namespace {

using std::chrono::milliseconds;

CommandQueue::Limits limits(int commands, std::size_t waiting, std::chrono::microseconds delay) {
  CommandQueue::Limits result;
  result.batchCommands = commands;
  result.waitingBatches = waiting;
  result.delay = delay;
  return result;
}

void addCall(CommandQueue& queue, std::uint64_t output) {
  CommandQueue::Appender commands = queue.append();
  if (commands) commands.add()->set_first_output(output);
}

TEST_CASE("A full batch is due at once, and commands keep their order") {
  CommandQueue queue(limits(3, 8, std::chrono::hours(1)));
  for (std::uint64_t i = 0; i < 6; ++i) addCall(queue, i);
  for (std::uint64_t batch = 0; batch < 2; ++batch) {
    const auto message = nextBatch(queue);
    REQUIRE(message->batch().commands_size() == 3);
    for (std::uint64_t i = 0; i < 3; ++i)
      CHECK(message->batch().commands(static_cast<int>(i)).first_output() == batch * 3 + i);
  }
}

TEST_CASE("Commands that one appender adds are not torn apart") {
  CommandQueue queue(limits(2, 8, std::chrono::hours(1)));
  {
    CommandQueue::Appender commands = queue.append();
    for (int i = 0; i < 5; ++i) commands.add();
  }
  CHECK(nextBatch(queue)->batch().commands_size() == 5);
}

TEST_CASE("A batch is due after the delay, or when it is flushed") {
  CommandQueue slow(limits(100, 8, std::chrono::hours(1)));
  addCall(slow, 1);
  slow.flush();
  CHECK(nextBatch(slow)->batch().commands_size() == 1);

  CommandQueue queue(limits(100, 8, milliseconds(20)));
  const auto start = std::chrono::steady_clock::now();
  addCall(queue, 1);
  CHECK(nextBatch(queue)->batch().commands_size() == 1);
  CHECK(std::chrono::steady_clock::now() - start >= milliseconds(20));
}

TEST_CASE("Tensor data makes a batch due") {
  CommandQueue queue(limits(100, 8, std::chrono::hours(1)));
  queue.append().add(1u << 20);
  CHECK(nextBatch(queue)->batch().commands_size() == 1);
}

TEST_CASE("append() waits while the queue is full; taking a batch or stop() ends the wait") {
  CommandQueue queue(limits(1, 2, std::chrono::hours(1)));
  addCall(queue, 0);
  addCall(queue, 1);
  std::thread blocked([&] {
    addCall(queue, 2);
    addCall(queue, 3);
  });
  CHECK(nextBatch(queue)->batch().commands(0).first_output() == 0);
  CHECK(nextBatch(queue)->batch().commands(0).first_output() == 1);
  CHECK(nextBatch(queue)->batch().commands(0).first_output() == 2);
  CHECK(nextBatch(queue)->batch().commands(0).first_output() == 3);
  blocked.join();

  addCall(queue, 4);
  addCall(queue, 5);
  std::thread stopped([&] { CHECK_FALSE(queue.append()); });
  queue.stop();
  stopped.join();
  CHECK(nextBatch(queue) == nullptr);
}

TEST_CASE("The sender is told when there may be something to send, and when to ask again") {
  CommandQueue queue(limits(2, 8, std::chrono::hours(1)));
  int told = 0;
  queue.onChange([&] {
    ++told;
    queue.next();  // without the queue's lock: no deadlock
  });
  const auto before = std::chrono::steady_clock::now();
  queue.append().add();
  CHECK(told == 1);  // the first command sets the time
  const CommandQueue::Next waiting = queue.next();
  CHECK(waiting.batch == nullptr);
  CHECK_FALSE(waiting.drained);
  REQUIRE(waiting.due.has_value());
  CHECK(*waiting.due >= before + std::chrono::hours(1));
  queue.flush();
  CHECK(told == 2);
  queue.flush();  // nothing is left
  CHECK(told == 2);
  CHECK_FALSE(queue.next().due.has_value());
  queue.append().add();
  queue.append().add();  // full
  CHECK(told == 4);
  queue.finish();
  CHECK(told == 5);
  CHECK(queue.next().drained);
}

TEST_CASE("A sender that has gone is not called") {
  CommandQueue queue(limits(1, 1 << 20, std::chrono::hours(1)));
  std::atomic<bool> there = true;
  std::atomic<bool> calledWhenGone = false;
  std::atomic<int> calls = 0;
  queue.onChange([&] {
    ++calls;
    std::this_thread::yield();
    if (!there) calledWhenGone = true;
  });
  std::thread user([&] {
    for (int i = 0; i < 20000; ++i) queue.appendAtOnce().add();
  });
  while (calls < 100) std::this_thread::yield();
  queue.onChange(nullptr);
  there = false;
  user.join();
  CHECK_FALSE(calledWhenGone);
}

TEST_CASE("appendAtOnce() does not wait for room") {
  CommandQueue queue(limits(1, 1, std::chrono::hours(1)));
  for (int i = 0; i < 10; ++i) queue.appendAtOnce().add();
  for (int i = 0; i < 10; ++i) CHECK(nextBatch(queue) != nullptr);
}

TEST_CASE("finish() hands out what is there") {
  CommandQueue queue(limits(2, 8, std::chrono::hours(1)));
  for (std::uint64_t i = 0; i < 3; ++i) addCall(queue, i);
  queue.finish();
  addCall(queue, 9);
  CHECK(nextBatch(queue)->batch().commands_size() == 2);
  CHECK(nextBatch(queue)->batch().commands_size() == 1);
  CHECK(nextBatch(queue) == nullptr);
}

TEST_CASE("Recycled batches start empty") {
  CommandQueue queue(limits(1, 8, std::chrono::hours(1)));
  addCall(queue, 7);
  queue.recycle(nextBatch(queue));
  queue.append().add()->mutable_release()->add_tensors(1);  // fills the batch made before the recycled one came back
  queue.append().add();
  nextBatch(queue);
  const auto message = nextBatch(queue);
  REQUIRE(message->batch().commands_size() == 1);
  CHECK(message->batch().commands(0).ByteSizeLong() == 0);
}

TEST_CASE("Several threads append while one sends") {
  constexpr std::uint64_t kThreads = 4;
  constexpr std::uint64_t kCalls = 5000;
  CommandQueue queue(limits(16, 4, std::chrono::microseconds(100)));
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&queue, t] {
      for (std::uint64_t i = 0; i < kCalls; ++i) addCall(queue, t * kCalls + i);
    });
  }
  std::vector<std::uint64_t> next(kThreads);
  std::thread sender([&] {
    while (auto message = nextBatch(queue)) {
      for (const v1::Command& command : message->batch().commands()) {
        const std::uint64_t thread = command.first_output() / kCalls;
        if (command.first_output() % kCalls == next[thread]) ++next[thread];
      }
      queue.recycle(std::move(message));
    }
  });
  for (std::thread& thread : threads) thread.join();
  queue.finish();
  sender.join();
  CHECK(next == std::vector<std::uint64_t>(kThreads, kCalls));
}

}  // namespace
}  // namespace dtorch
