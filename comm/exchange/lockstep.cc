#include "comm/exchange/lockstep.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "shm/futex.h"

namespace dtorch {
namespace {
using std::chrono::milliseconds;

/// How often a sleeper looks whether a peer died; well below the second within which a death must be seen.
constexpr milliseconds kLookAround{50};
/// About 20 us: longer than a quick peer needs, shorter than two switches of threads.
constexpr int kSpins = 500;
/// How often a rank leaves the processor of the one that it waits for, where the kernel brings them together again.
constexpr milliseconds kStayTogether{1};

int spinsFor(int ranks) {
  // Whoever spins while more ranks than cores want to run keeps the one that it waits for from running.
  return ranks <= static_cast<int>(std::thread::hardware_concurrency()) ? kSpins : 1;
}

/// Moves this thread off `processor`, where it is allowed to run on others; what it is allowed stays as it is.
void leaveProcessor(int processor) {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0 || CPU_COUNT(&allowed) < 2) return;
  cpu_set_t others = allowed;
  CPU_CLR(processor, &others);
  ::sched_setaffinity(0, sizeof(others), &others);
  ::sched_setaffinity(0, sizeof(allowed), &allowed);
}

}  // namespace

Lockstep::Lockstep(Arena arena, int self, std::vector<ProcessWatch> watches)
    : arena_(arena), self_(self), spins_(spinsFor(arena.size())), watches_(std::move(watches)) {}

void Lockstep::step() {
  arena_.processor(self_).store(::sched_getcpu(), std::memory_order_relaxed);
  // seq_cst on both sides of both words: either the sleeper sees the new count or this sees the sleeper.
  arena_.posted(self_).store(++steps_, std::memory_order_seq_cst);
  if (arena_.sleepers(self_).load(std::memory_order_seq_cst) != 0) futexWakeAll(arena_.posted(self_));
}

bool Lockstep::reached(int peer) const {
  const std::uint32_t posted = arena_.posted(peer).load(std::memory_order_acquire);
  return static_cast<std::int32_t>(posted - steps_) >= 0;
}

absl::Status Lockstep::awaitAll(Deadline deadline, const Call& call) {
  for (int peer = 0; peer < arena_.size(); ++peer) {
    bool arrived = reached(peer);
    const bool apart = arrived || standsApart(peer);
    for (int spin = 0; apart && !arrived && spin < spins_; ++spin) {
      __builtin_ia32_pause();
      arrived = reached(peer);
    }
    if (arrived) continue;
    if (absl::Status status = awaitSlowly(peer, deadline, call); !status.ok()) return status;
  }
  return absl::OkStatus();
}

bool Lockstep::standsApart(int peer) {
  const int processor = ::sched_getcpu();
  if (arena_.processor(peer).load(std::memory_order_relaxed) != processor) return true;
  // Whoever spins where its peer was last keeps it from running. The kernel wakes a sleeper where its waker runs, so
  // that two ranks that sleep for each other stay together while other processors are idle.
  const auto now = std::chrono::steady_clock::now();
  if (spins_ > 1 && now >= mayMove_) {
    mayMove_ = now + kStayTogether;
    leaveProcessor(processor);
  }
  return arena_.processor(peer).load(std::memory_order_relaxed) != ::sched_getcpu();
}

/// COMM-1.
absl::Status Lockstep::awaitSlowly(int peer, Deadline deadline, const Call& call) {
  std::atomic<std::uint32_t>& posted = arena_.posted(peer);
  {
    const std::lock_guard lock(mutex_);
    awaited_ = peer;
    awaitedIn_ = call;
    awaitedSince_ = std::chrono::steady_clock::now();
  }
  const auto arrived = absl::MakeCleanup([this] {
    const std::lock_guard lock(mutex_);
    awaited_ = -1;
  });
  for (;;) {
    // The condition before the breakage: a rank that has taken its last step may leave, and that is no error here.
    const absl::Status why = broken();
    const std::uint32_t seen = posted.load(std::memory_order_acquire);
    if (reached(peer)) return absl::OkStatus();
    if (!why.ok()) return why;
    absl::Status failure = findDead();
    if (failure.ok() && std::chrono::steady_clock::now() >= deadline) {
      failure = absl::DeadlineExceededError(absl::StrCat("rank ", arena_.rankAt(self_), " waited in vain for rank ",
                                                         arena_.rankAt(peer), " in ", call.toString()));
    }
    if (!failure.ok()) {
      if (reached(peer)) return absl::OkStatus();  // its last step came before its death
      breakGroup(failure);
      return broken();
    }
    arena_.sleepers(peer).fetch_add(1, std::memory_order_seq_cst);
    if (posted.load(std::memory_order_seq_cst) == seen) {
      const auto left =
          std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - std::chrono::steady_clock::now());
      futexWait(posted, seen, std::min<std::chrono::nanoseconds>(kLookAround, left));
    }
    arena_.sleepers(peer).fetch_sub(1, std::memory_order_relaxed);
  }
}

std::optional<RankWait> Lockstep::wait() const {
  const std::lock_guard lock(mutex_);
  if (awaited_ < 0) return std::nullopt;
  return RankWait{arena_.rankAt(awaited_), awaitedIn_.toString(), awaitedSince_};
}

absl::Status Lockstep::findDead() const {
  for (std::size_t i = 0; i < watches_.size(); ++i) {
    if (watches_[i].pid() != 0 && watches_[i].exited()) {
      return absl::UnavailableError(
          absl::StrCat("rank ", arena_.rankAt(static_cast<int>(i)), " (process ", watches_[i].pid(), ") died"));
    }
  }
  return absl::OkStatus();
}

void Lockstep::breakGroup(const absl::Status& why) {
  {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(gaveReason_, true)) {
      Arena::Reason& reason = arena_.reason(self_);
      const absl::string_view text = why.message();
      reason.code = why.raw_code();
      reason.textBytes = static_cast<std::uint32_t>(std::min(text.size(), reason.text.size()));
      std::memcpy(reason.text.data(), text.data(), reason.textBytes);
      // Whole before it counts: nobody, however slow, sees a group that is broken without a reason.
      std::uint32_t usable = 0;
      arena_.breaker().compare_exchange_strong(usable, static_cast<std::uint32_t>(self_) + 1,
                                               std::memory_order_acq_rel);
    }
  }
  for (int i = 0; i < arena_.size(); ++i) futexWakeAll(arena_.posted(i));
}

absl::Status Lockstep::broken() const {
  const std::uint32_t breaker = arena_.breaker().load(std::memory_order_acquire);
  if (breaker == 0) return absl::OkStatus();
  const Arena::Reason& reason = arena_.reason(static_cast<int>(breaker) - 1);
  return absl::Status(static_cast<absl::StatusCode>(reason.code),
                      absl::string_view(reason.text.data(), reason.textBytes));
}

}  // namespace dtorch
