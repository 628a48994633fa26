#include "client/torch/current_session.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <utility>

#include "client/cpp/fork.h"

namespace dtorch {
namespace {

struct Current {
  std::mutex mutex;
  std::shared_ptr<Session> session;
  std::atomic<int> forkDepth = -1;  // of the process that set it; -1: there is none
  Destination destination;
  std::atomic<bool> implicit{true};
  std::atomic<std::int64_t> timeLimitMs{0};
};

Current& current() {
  static auto* only = new Current;  // outlives what is destroyed at the end of the process
  return *only;
}

// Who held the mutex, if anybody did, is not in this process.
bool isParents(const Current& state) {
  const int depth = state.forkDepth;
  return depth != -1 && depth != forkDepth();
}

}  // namespace

std::shared_ptr<Session> currentSession() {
  Current& state = current();
  if (isParents(state)) raise(forkedError());
  const std::lock_guard lock(state.mutex);
  TORCH_CHECK(state.session != nullptr,
              "the device dtorch has no session: call dtorch.start() or dtorch.connect() first");
  return state.session;
}

void setCurrentSession(std::shared_ptr<Session> session) {
  Current& state = current();
  if (isParents(state)) return;
  const std::lock_guard lock(state.mutex);
  state.forkDepth = session == nullptr ? -1 : forkDepth();
  state.destination = {};       // a mesh is of its session
  state.session.swap(session);  // the old one ends without the lock
}

Destination currentDestination() {
  Current& state = current();
  if (isParents(state)) raise(forkedError());
  const std::lock_guard lock(state.mutex);
  return state.destination;
}

void setCurrentDestination(Destination destination) {
  Current& state = current();
  if (isParents(state)) return;
  const std::lock_guard lock(state.mutex);
  state.destination = std::move(destination);
}

bool redistributesImplicitly() { return current().implicit; }
bool setRedistributesImplicitly(bool implicit) { return current().implicit.exchange(implicit); }

void setCurrentTimeLimit(std::chrono::milliseconds limit) { current().timeLimitMs = limit.count(); }
std::chrono::milliseconds currentTimeLimit() { return std::chrono::milliseconds(current().timeLimitMs.load()); }

void raise(const absl::Status& status) { C10_THROW_ERROR(Error, std::string(status.message())); }

}  // namespace dtorch
