#include "worker/cancel_gate.h"

#include <algorithm>
#include <utility>

namespace dtorch {

bool CancelGate::begin(StreamKind stream, SessionId session, OperatorNumber number) {
  begun_[index(stream)].store(number);
  if (!active_.load()) return false;
  std::unique_lock lock(mutex_);
  const auto concerns = [&](const Cancel& cancel) {
    return cancel.session == session && cancel.first <= number && number <= cancel.last &&
           number > cancel.begun[index(stream)] &&
           (cancel.only.empty() || std::binary_search(cancel.only.begin(), cancel.only.end(), number));
  };
  decided_.wait(lock, [&] {
    return stopped_ || std::all_of(cancels_.begin(), cancels_.end(),
                                   [&](const Cancel& cancel) { return cancel.decided || !concerns(cancel); });
  });
  return std::any_of(cancels_.begin(), cancels_.end(), [&](const Cancel& cancel) {
    return cancel.decided && concerns(cancel) && number > cancel.furthest[index(stream)];
  });
}

CancelGate::Begun CancelGate::hold(std::uint64_t cancel, SessionId session, OperatorNumber first, OperatorNumber last,
                                   std::vector<OperatorNumber> only) {
  const std::lock_guard lock(mutex_);
  active_.store(true);
  Cancel held{cancel, session, first, last, std::move(only)};
  for (std::size_t stream = 0; stream < kStreams; ++stream) held.begun[stream] = begun_[stream].load();
  cancels_.push_back(std::move(held));
  return cancels_.back().begun;
}

void CancelGate::decide(std::uint64_t cancel, const Begun& furthest) {
  {
    const std::lock_guard lock(mutex_);
    const auto it =
        std::find_if(cancels_.begin(), cancels_.end(), [&](const Cancel& each) { return each.id == cancel; });
    if (it == cancels_.end()) return;
    it->furthest = furthest;
    it->decided = true;
  }
  decided_.notify_all();
}

void CancelGate::passed(std::uint64_t cancel) {
  const std::lock_guard lock(mutex_);
  std::erase_if(cancels_, [&](Cancel& each) { return each.id == cancel && --each.streamsLeft == 0; });
  active_.store(!cancels_.empty());
}

void CancelGate::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  decided_.notify_all();
}

}  // namespace dtorch
