#include "comm/group/point_to_point.h"

#include <pthread.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace dtorch {
namespace {

std::string keyOf(Rank to, int tag, std::uint64_t number) {
  return absl::StrCat("to ", to, " tag ", tag, " #", number);
}

absl::Status checkFit(const at::Tensor& sent, const at::Tensor& wanted) {
  if (sent.scalar_type() == wanted.scalar_type() && sent.numel() == wanted.numel()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a send of ", sent.numel(), " ", c10::toString(sent.scalar_type()),
                                                 " meets a receive of ", wanted.numel(), " ",
                                                 c10::toString(wanted.scalar_type())));
}

absl::Status copyTo(const at::Tensor& from, const at::Tensor& to) {
  try {
    to.copy_(from.reshape(to.sizes()));
    return absl::OkStatus();
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("copying a received tensor: ", e.what()));
  }
}

}  // namespace

PointToPoint::PointToPoint(std::unique_ptr<TensorStore> store, std::vector<Rank> peers)
    : store_(std::move(store)), peers_(std::move(peers)), thread_([this] { loop(); }) {
  pthread_setname_np(thread_.native_handle(), "dtorch-p2p");
}

PointToPoint::~PointToPoint() {
  abort();
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  store_->ring();
  thread_.join();
}

void PointToPoint::send(const at::Tensor& tensor, Rank to, int tag, std::chrono::milliseconds timeout, Done done) {
  Operation operation;
  operation.isSend = true;
  operation.tensor = tensor;
  operation.peer = to;
  operation.tag = tag;
  operation.deadline = std::chrono::steady_clock::now() + timeout;
  operation.done = std::move(done);
  submit(std::move(operation));
}

void PointToPoint::receive(const at::Tensor& tensor, std::optional<Rank> from, int tag,
                           std::chrono::milliseconds timeout, Done done) {
  Operation operation;
  operation.tensor = tensor;
  operation.peer = from;
  operation.tag = tag;
  operation.deadline = std::chrono::steady_clock::now() + timeout;
  operation.done = std::move(done);
  submit(std::move(operation));
}

void PointToPoint::submit(Operation operation) {
  {
    const std::lock_guard lock(mutex_);
    if (operation.isSend) {
      operation.key = keyOf(*operation.peer, operation.tag, toSend_[{*operation.peer, operation.tag}]++);
    }
    operations_.push_back(std::move(operation));
  }
  store_->ring();
}

void PointToPoint::abort() {
  {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
  }
  store_->ring();
}

void PointToPoint::loop() {
  for (;;) {
    const std::uint32_t seen = store_->changes();
    std::vector<std::pair<Done, Outcome>> finished;
    auto wake = TensorStore::Deadline::max();
    bool stopping = false;
    {
      Channels awaited;
      const std::lock_guard lock(mutex_);
      for (auto it = operations_.begin(); it != operations_.end();) {
        if (auto outcome = advanceLocked(*it, awaited)) {
          finished.emplace_back(std::move(it->done), *std::move(outcome));
          it = operations_.erase(it);
        } else {
          wake = std::min(wake, it->deadline);
          ++it;
        }
      }
      stopping = stopping_;
      if (!operations_.empty()) wake = std::min(wake, std::chrono::steady_clock::now() + TensorStore::kLookAround);
    }
    for (auto& [done, outcome] : finished) done(outcome.status, outcome.source);
    if (stopping) return;
    store_->awaitChange(seen, wake);
  }
}

/// COMM-1: abort, the peer (in what it calls), deadline.
std::optional<PointToPoint::Outcome> PointToPoint::advanceLocked(Operation& operation, Channels& awaited) {
  if (aborted_) return Outcome{absl::AbortedError("the group was aborted")};
  auto outcome = operation.isSend ? advanceSendLocked(operation) : advanceReceiveLocked(operation, awaited);
  if (outcome || std::chrono::steady_clock::now() < operation.deadline) return outcome;
  return Outcome{absl::DeadlineExceededError(absl::StrCat(
      "waited in vain ", operation.isSend ? "for the receive of a message to rank " : "for a message from ",
      operation.peer ? absl::StrCat(operation.isSend ? "" : "rank ", *operation.peer) : std::string("any rank"),
      ", tag ", operation.tag))};
}

std::optional<PointToPoint::Outcome> PointToPoint::advanceSendLocked(Operation& operation) {
  if (!operation.isSet) {
    const absl::Status set = store_->srcSet(operation.key, operation.tensor, 1);
    if (absl::IsResourceExhausted(set)) return std::nullopt;  // until other messages are received
    if (!set.ok()) return Outcome{set};
    operation.isSet = true;
  }
  const absl::Status there = store_->peerStatus(*operation.peer);  // first: it may leave when it has received
  const absl::Status read = store_->srcWaitUntilGetFinished(operation.key, TensorStore::Deadline::min());
  if (!absl::IsDeadlineExceeded(read)) return Outcome{read};
  return there.ok() ? std::nullopt : std::optional<Outcome>(Outcome{there});
}

std::optional<PointToPoint::Outcome> PointToPoint::advanceReceiveLocked(Operation& operation, Channels& awaited) {
  const std::vector<Rank> sources = operation.peer ? std::vector<Rank>{*operation.peer} : peers_;
  // Anybody's message is waited for while somebody is there to send it, and nobody has died.
  const absl::Status death = store_->findDead();
  std::size_t absent = 0;
  for (const Rank source : sources) {
    if (!awaited.insert({source, operation.tag}).second) continue;
    std::uint64_t& next = toReceive_[{source, operation.tag}];
    const std::string key = keyOf(store_->self().rank, operation.tag, next);
    const auto found = store_->destTryGet(source, key);
    if (!found.ok()) {
      awaited.erase({source, operation.tag});  // nothing comes from there
      if (++absent == sources.size()) return Outcome{found.status(), source};
      continue;
    }
    if (!*found) continue;
    ++next;
    awaited.erase({source, operation.tag});
    const absl::Status fits = checkFit(**found, operation.tensor);
    const absl::Status copied = fits.ok() ? copyTo(**found, operation.tensor) : fits;
    const absl::Status finished = store_->destFinishGet(source, key, copied);
    return Outcome{copied.ok() ? finished : copied, source};
  }
  if (!operation.peer && !death.ok()) return Outcome{death};
  return std::nullopt;
}

}  // namespace dtorch
