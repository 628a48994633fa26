#include "worker/spsc_queue.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "tests/catch.h"

namespace dtorch {
namespace {

struct Counted {
  explicit Counted(std::atomic<int>* alive = nullptr) : alive_(alive) {}
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  ~Counted() {
    if (alive_ != nullptr) --*alive_;
  }
  void bind(std::atomic<int>* alive) {
    alive_ = alive;
    ++*alive_;
  }

 private:
  std::atomic<int>* alive_;
};

}  // namespace

TEST_CASE("elements arrive once, whole and in order") {
  constexpr std::uint64_t kElements = 100000;
  struct Element {
    std::uint64_t number = 0;
    std::unique_ptr<std::uint64_t> copy;
  };
  SpscQueue<Element> queue;
  std::thread producer([&] {
    for (std::uint64_t i = 1; i <= kElements; ++i) {
      Element& element = queue.stage();
      element.number = i;
      element.copy = std::make_unique<std::uint64_t>(i);
      queue.publish();
    }
  });
  bool inOrder = true;
  for (std::uint64_t i = 1; i <= kElements; ++i) {
    Element* element = queue.front();
    while (element == nullptr) element = queue.front();
    inOrder = inOrder && element->number == i && *element->copy == i;
    queue.pop();
  }
  producer.join();
  CHECK(inOrder);
  CHECK(queue.published() == kElements);
}

TEST_CASE("what is left in it is destroyed with the queue") {
  std::atomic<int> alive{0};
  {
    SpscQueue<Counted> queue;
    CHECK(queue.front() == nullptr);
    for (int i = 0; i < 1000; ++i) {
      queue.stage().bind(&alive);
      queue.publish();
    }
    for (int i = 0; i < 300 && queue.front() != nullptr; ++i) queue.pop();
    CHECK(alive == 700);
  }
  CHECK(alive == 0);
}

}  // namespace dtorch
