#include "worker/random_states.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <mutex>

namespace dtorch {
namespace {

std::mutex& turns() {
  static std::mutex mutex;
  return mutex;
}

at::Tensor initialState() { return at::make_generator<at::CPUGeneratorImpl>(c10::default_rng_seed_val).get_state(); }

}  // namespace

void RandomStates::run(SessionId session, const std::vector<Rank>& ranks, absl::FunctionRef<void()> kernel) {
  at::Tensor state;
  {
    const absl::MutexLock lock(&mutex_);
    at::Tensor& known = states_[{session, ranks}];
    if (!known.defined()) known = initialState();
    state = known;
  }
  const std::lock_guard turn(turns());
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  generator.set_state(state);
  kernel();
  at::Tensor after = generator.get_state();
  const absl::MutexLock lock(&mutex_);
  states_[{session, ranks}] = std::move(after);
}

void RandomStates::dropMeshesOf(Rank rank) {
  const absl::MutexLock lock(&mutex_);
  absl::erase_if(states_, [&](const auto& entry) {
    const std::vector<Rank>& ranks = entry.first.second;
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  });
}

void RandomStates::drop(SessionId session) {
  const absl::MutexLock lock(&mutex_);
  absl::erase_if(states_, [&](const auto& entry) { return entry.first.first == session; });
}

}  // namespace dtorch
