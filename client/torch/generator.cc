#include "client/torch/generator.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <bit>
#include <exception>
#include <utility>

#include "client/torch/current_session.h"
#include "client/torch/host_values.h"
#include "client/torch/remote_tensor.h"

namespace dtorch {
namespace {

std::mutex& drawing() {
  static auto* only = new std::mutex;
  return *only;
}

// With drawing() held, and the site of before.
void seedSession(std::uint64_t seed, Site site) {
  currentSession()->callMany("dtorch::manual_seed", {std::bit_cast<std::int64_t>(seed)}, 0, {}, site);
}

Tensor sessionState(Site site) { return currentSession()->call("dtorch::get_rng_state", {}, {}, site); }

void setSessionState(const Tensor& state, Site site) {
  currentSession()->callMany("dtorch::set_rng_state", {state}, 0, {}, site);
}

}  // namespace

Tensor rngState() {
  const Site site = callSite();
  const DrawsFrom draws(nullptr, site);
  return sessionState(site);
}

void setRngState(const Tensor& state) {
  const Site site = callSite();
  const DrawsFrom draws(nullptr, site);
  setSessionState(state, site);
}

RemoteGenerator::RemoteGenerator(bool isDefault)
    : GeneratorImpl(c10::Device(c10::kPrivateUse1, 0), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      isDefault_(isDefault) {}

void RemoteGenerator::set_current_seed(std::uint64_t seed) {
  seed_ = seed;
  state_.reset();
  if (!isDefault_) return;
  const Site site = callSite();
  const DrawsFrom draws(nullptr, site);
  seedSession(seed, site);
}

void RemoteGenerator::set_offset(std::uint64_t /*offset*/) {
  TORCH_CHECK(false, "a generator of the device dtorch has no offset");
}

std::uint64_t RemoteGenerator::get_offset() const {
  TORCH_CHECK(false, "a generator of the device dtorch has no offset");
}

std::uint64_t RemoteGenerator::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom());
  return seed_;
}

void RemoteGenerator::set_state(const c10::TensorImpl& state) {
  const at::Tensor given(
      c10::intrusive_ptr<c10::TensorImpl>::unsafe_reclaim_from_nonowning(const_cast<c10::TensorImpl*>(&state)));
  const Tensor remote = isRemote(given) ? remoteImpl(given).remote() : putHost(given, {});
  if (isDefault_) return setRngState(remote);
  keep(remote);
}

c10::intrusive_ptr<c10::TensorImpl> RemoteGenerator::get_state() const {
  auto* self = const_cast<RemoteGenerator*>(this);
  if (!isDefault_ && !state_) const DrawsFrom draws(self, callSite());
  const absl::StatusOr<HostTensor> value = (isDefault_ ? rngState() : *state_).get().get();
  if (!value.ok()) raise(value.status());
  // Of its own memory: the program may write to it.
  return toHost(*value).clone().getIntrusivePtr();
}

RemoteGenerator* RemoteGenerator::clone_impl() const {
  auto* copy = new RemoteGenerator(false);
  copy->seed_ = seed_;
  if (isDefault_) {
    copy->keep(rngState());
  } else if (state_) {
    copy->state_ = state_;
    copy->session_ = session_;
  }
  return copy;
}

void RemoteGenerator::keep(const Tensor& state) {
  state_ = state;
  session_ = currentSession();
}

void RemoteGenerator::begin(Site site) {
  TORCH_CHECK(!state_ || session_.lock() == currentSession(),
              "the state of this generator ended with its session: seed it, or set its state");
  site_ = site;
  set_ = sessionState(site);
  if (state_) {
    setSessionState(*state_, site);
  } else {
    seedSession(seed_, site);
  }
}

void RemoteGenerator::end() noexcept {
  try {
    keep(sessionState(site_));
    setSessionState(*std::exchange(set_, std::nullopt), site_);
  } catch (const std::exception&) {  // the session has ended, and its state with it
    set_.reset();
  }
}

const at::Generator& defaultGenerator() {
  static const auto* only = new at::Generator(at::make_generator<RemoteGenerator>(true));
  return *only;
}

DrawsFrom::DrawsFrom(RemoteGenerator* generator, Site site)
    : lock_(drawing()), generator_(generator == nullptr || generator->isDefault() ? nullptr : generator) {
  if (generator_ != nullptr) generator_->begin(site);
}

DrawsFrom::~DrawsFrom() {
  if (generator_ != nullptr) generator_->end();
}

}  // namespace dtorch
