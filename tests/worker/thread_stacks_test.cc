#include "worker/thread_stacks.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "shm/segment.h"
#include "tests/catch.h"

namespace dtorch {
namespace {

using Clock = std::chrono::steady_clock;

// A function with a name of its own on the stack.
__attribute__((noinline)) void waitFor(std::future<void>& end) {
  end.wait();
  asm volatile("");  // no tail call
}

/// A thread of this name that waits, with all signals blocked or not.
class WaitingThread {
 public:
  explicit WaitingThread(const char* name, bool blocksSignals = false) {
    std::promise<void> running;
    thread_ = std::thread([&] {
      pthread_setname_np(pthread_self(), name);
      tid_ = gettid();
      if (blocksSignals) {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, nullptr);
      }
      std::future<void> end = end_.get_future();
      running.set_value();
      waitFor(end);
    });
    running.get_future().wait();
  }
  ~WaitingThread() {
    end_.set_value();
    thread_.join();
  }
  NamedStack stackIn(const std::vector<NamedStack>& stacks) const {
    const auto it = std::find_if(stacks.begin(), stacks.end(), [this](const auto& each) { return each.tid == tid_; });
    REQUIRE(it != stacks.end());
    return *it;
  }

 private:
  std::promise<void> end_;
  std::thread thread_;
  std::atomic<pid_t> tid_ = 0;
};

bool names(const NamedStack& stack, const std::string& function) {
  return std::any_of(stack.frames.begin(), stack.frames.end(),
                     [&](const std::string& frame) { return frame.find(function) != std::string::npos; });
}

}  // namespace

TEST_CASE("threads are told by name, with the functions that they are in") {
  const WaitingThread one("one");
  const WaitingThread two("two");
  const std::vector<NamedStack> stacks = threadStacks();
  CHECK(std::none_of(stacks.begin(), stacks.end(), [](const auto& each) { return each.tid == gettid(); }));
  for (const WaitingThread* thread : {&one, &two}) {
    const NamedStack stack = thread->stackIn(stacks);
    CHECK(names(stack, "waitFor"));
    CHECK_FALSE(names(stack, "onWalkSignal"));
  }
  CHECK(one.stackIn(stacks).name == "one");
}

TEST_CASE("a thread that blocks signals has no frames, and holds nobody up") {
  const WaitingThread deaf("deaf", true);
  const auto begin = Clock::now();
  CHECK(deaf.stackIn(threadStacks()).frames.empty());
  CHECK(Clock::now() - begin < std::chrono::milliseconds(200));
}

TEST_CASE("memory is made while stacks are looked at") {
  std::atomic<bool> enough = false;
  std::thread looking([&] {
    while (!enough) threadStacks();
  });
  for (int i = 0; i < 50; ++i) {
    const absl::StatusOr<Segment> segment = Segment::create("test", 32 << 20);
    INFO(segment.status());
    CHECK(segment.ok());
  }
  enough = true;
  looking.join();
}

}  // namespace dtorch
