#include "client/cpp/fork.h"

#include <pthread.h>

#include <atomic>

namespace dtorch {
namespace {

std::atomic<int> depth{0};
std::atomic<int> count{0};
const int registered = ::pthread_atfork(
    nullptr, [] { count.fetch_add(1, std::memory_order_relaxed); },
    [] { depth.fetch_add(1, std::memory_order_relaxed); });

}  // namespace

int forkDepth() {
  static_cast<void>(registered);
  return depth.load(std::memory_order_relaxed);
}

int forkCount() { return count.load(std::memory_order_relaxed); }

const absl::Status& forkedError() {
  static const auto* error = new absl::Status(
      absl::StatusCode::kFailedPrecondition,
      "a forked process cannot use a session of its parent's, nor begin one: start it anew (exec; Python's "
      "multiprocessing method \"spawn\"), or keep its tensors on the CPU");
  return *error;
}

}  // namespace dtorch
