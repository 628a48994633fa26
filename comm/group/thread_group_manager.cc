#include "comm/group/thread_group_manager.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/exchange/mailbox.h"
#include "comm/group/cpu_thread_group.h"
#include "comm/store/shared_allocator.h"

namespace dtorch {
namespace {

absl::Status deathOf(const PeerRef& peer) {
  return absl::UnavailableError(absl::StrCat("rank ", peer.rank, " (process ", peer.pid, ") died"));
}

}  // namespace

class ThreadGroupManager::Impl {
 public:
  Impl(Rank rank, Mailbox mailbox, std::chrono::milliseconds timeout)
      : mailbox_(std::move(mailbox)),
        timeout_(timeout),
        self_{rank, ::getpid(), mailbox_.ref()},
        memory_(std::make_shared<PeerMemory>(sharedHeap())) {}

  const PeerRef& self() const { return self_; }
  void setPeers(std::vector<PeerRef> peers, std::uint64_t epoch, absl::Span<const std::vector<Rank>> renewed);
  absl::StatusOr<ThreadGroup*> group(const std::vector<Rank>& ranks);
  std::vector<BrokenGroup> broken() const;
  std::vector<RankWait> waits() const;
  void abort(const absl::Status& why);

 private:
  struct Made {
    std::unique_ptr<CpuThreadGroup> group;
    std::uint64_t epoch = 0;
  };
  /// Ordered, so that all ranks destroy their groups in one order.
  using Groups = std::map<std::vector<Rank>, Made>;

  struct Members {
    int index = -1;
    std::vector<PeerRef> peers;
    std::vector<ProcessWatch> watches;
    std::uint64_t epoch = 0;
  };
  absl::StatusOr<Members> membersLocked(const std::vector<Rank>& ranks) const;
  absl::Status make(const std::vector<Rank>& ranks, std::uint64_t* epoch);
  absl::StatusOr<Segment> found(const std::vector<Rank>& ranks, std::uint64_t epoch);
  absl::StatusOr<Segment> join(const std::vector<Rank>& ranks, const Members& members);

  Mailbox mailbox_;
  const std::chrono::milliseconds timeout_;
  const PeerRef self_;
  const std::shared_ptr<PeerMemory> memory_;

  /// Held while a group is made: a rank makes one group at a time, in the order in which it is asked for them.
  std::mutex making_;
  /// Guards the rest; never held while waiting for a peer.
  mutable std::mutex mutex_;
  std::vector<PeerRef> peers_;
  std::uint64_t epoch_ = 0;
  std::map<std::vector<Rank>, std::uint64_t> failedToMake_;  // the epochs
  Groups groups_;
  /// The group that waits for its other ranks, so that abort() and setPeers() can end the wait.
  CpuThreadGroup* forming_ = nullptr;
  std::optional<RankWait> joining_;  // for a founder
  /// Dropped by the last setPeers(): aborted, but a call may still be on its way out of one.
  std::vector<std::unique_ptr<CpuThreadGroup>> retired_;
  absl::Status aborted_;
  std::atomic<bool> stopWaiting_ = false;
};

void ThreadGroupManager::Impl::setPeers(std::vector<PeerRef> peers, std::uint64_t epoch,
                                        absl::Span<const std::vector<Rank>> renewed) {
  const absl::Status why = absl::AbortedError("the ranks were replaced");
  std::vector<std::unique_ptr<CpuThreadGroup>> gone;  // destroyed without the mutex
  const std::lock_guard lock(mutex_);
  const auto isReplaced = [&](Rank rank) {
    const auto of = [rank](const std::vector<PeerRef>& all) {
      return std::find_if(all.begin(), all.end(), [rank](const PeerRef& peer) { return peer.rank == rank; });
    };
    const auto before = of(peers_);
    const auto now = of(peers);
    return before == peers_.end() || now == peers.end() || before->pid != now->pid || before->mailbox != now->mailbox;
  };
  const auto ends = [&](const std::vector<Rank>& ranks) {
    return std::any_of(ranks.begin(), ranks.end(), isReplaced) ||
           std::find(renewed.begin(), renewed.end(), ranks) != renewed.end();
  };
  gone = std::exchange(retired_, {});
  for (auto it = groups_.begin(); it != groups_.end();) {
    const auto current = it++;
    if (!ends(current->first)) continue;
    current->second.group->abort(why);
    retired_.push_back(std::move(current->second.group));
    groups_.erase(current);
  }
  std::erase_if(failedToMake_, [&](const auto& entry) { return ends(entry.first); });
  if (forming_ != nullptr) forming_->abort(why);
  peers_ = std::move(peers);
  epoch_ = epoch;
}

absl::StatusOr<ThreadGroupManager::Impl::Members> ThreadGroupManager::Impl::membersLocked(
    const std::vector<Rank>& ranks) const {
  Members members;
  members.epoch = epoch_;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const auto peer = std::find_if(peers_.begin(), peers_.end(), [&](const PeerRef& p) { return p.rank == ranks[i]; });
    if (peer == peers_.end()) {
      return absl::NotFoundError(absl::StrCat("rank ", self_.rank, " knows no rank ", ranks[i]));
    }
    if (std::count(ranks.begin(), ranks.end(), ranks[i]) != 1) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", ranks[i], " is twice in a group"));
    }
    members.peers.push_back(*peer);
    if (ranks[i] == self_.rank) members.index = static_cast<int>(i);
  }
  if (members.index < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", self_.rank, " asks for a group of others: ", absl::StrJoin(ranks, ", ")));
  }
  return members;
}

absl::StatusOr<ThreadGroup*> ThreadGroupManager::Impl::group(const std::vector<Rank>& ranks) {
  const auto findLocked = [&]() -> ThreadGroup* {
    const auto it = groups_.find(ranks);
    return it == groups_.end() ? nullptr : it->second.group.get();
  };
  {
    const std::lock_guard lock(mutex_);
    if (!aborted_.ok()) return aborted_;
    if (ThreadGroup* group = findLocked()) return group;
  }
  const std::lock_guard making(making_);
  {
    const std::lock_guard lock(mutex_);
    if (ThreadGroup* group = findLocked()) return group;
  }
  std::uint64_t epoch = 0;
  if (absl::Status made = make(ranks, &epoch); !made.ok()) {
    const std::lock_guard lock(mutex_);
    failedToMake_[ranks] = epoch;
    return absl::Status(made.code(), absl::StrCat("rank ", self_.rank, " cannot make the group of ranks ",
                                                  absl::StrJoin(ranks, ", "), ": ", made.message()));
  }
  const std::lock_guard lock(mutex_);
  ThreadGroup* group = findLocked();
  if (group == nullptr) return absl::AbortedError("the ranks were replaced");
  return group;
}

absl::Status ThreadGroupManager::Impl::make(const std::vector<Rank>& ranks, std::uint64_t* epoch) {
  absl::StatusOr<Members> members;
  {
    const std::lock_guard lock(mutex_);
    members = membersLocked(ranks);
    *epoch = epoch_;
  }
  if (!members.ok()) return members.status();
  members->watches.resize(ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const PeerRef& peer = members->peers[i];
    if (peer.pid == self_.pid) continue;
    // First the watch, then the mailbox's inode: that it is still the peer's says that the watch is on the peer.
    auto watch = ProcessWatch::open(peer.pid);
    if (!watch.ok() || !Mailbox::open(peer.mailbox).ok()) {
      return deathOf(peer);
    }
    members->watches[i] = *std::move(watch);
  }
  auto segment = members->index == 0 ? found(ranks, members->epoch) : join(ranks, *members);
  if (!segment.ok()) return segment.status();
  auto group = std::make_unique<CpuThreadGroup>(*std::move(segment), members->index, std::move(members->watches),
                                                memory_, timeout_);
  {
    const std::lock_guard lock(mutex_);
    if (!aborted_.ok()) return aborted_;
    if (epoch_ != members->epoch) return absl::AbortedError("the ranks were replaced");
    forming_ = group.get();
  }
  // Everybody is here before anybody goes on: a peer that does not come is reported now, not at the first collective.
  const absl::Status all = group->barrier({0, "creation of a group"});
  const std::lock_guard lock(mutex_);
  forming_ = nullptr;
  if (!all.ok()) return all;
  if (epoch_ == members->epoch) groups_[ranks] = {std::move(group), members->epoch};
  return absl::OkStatus();
}

absl::StatusOr<Segment> ThreadGroupManager::Impl::found(const std::vector<Rank>& ranks, std::uint64_t epoch) {
  auto segment = Segment::create("dtorch-group", Arena::bytesFor(static_cast<int>(ranks.size())));
  if (!segment.ok()) return segment.status();
  Arena::format(segment->data(), ranks);
  if (absl::Status up = mailbox_.publish(Mailbox::keyOf(epoch, ranks), segment->ref()); !up.ok()) return up;
  return segment;
}

absl::StatusOr<Segment> ThreadGroupManager::Impl::join(const std::vector<Rank>& ranks, const Members& members) {
  const PeerRef& founder = members.peers[0];
  // Of any member: a founder that finds one dead founds nothing.
  const auto alive = [&members] {
    for (std::size_t i = 0; i < members.peers.size(); ++i) {
      if (members.watches[i].pid() != 0 && members.watches[i].exited()) return deathOf(members.peers[i]);
    }
    return absl::OkStatus();
  };
  auto mailbox = Mailbox::open(founder.mailbox);
  if (!mailbox.ok()) return deathOf(founder);
  const auto now = std::chrono::steady_clock::now();
  const auto setJoining = [this](std::optional<RankWait> wait) {
    const std::lock_guard lock(mutex_);
    joining_ = std::move(wait);
  };
  setJoining(RankWait{founder.rank, absl::StrCat("creation of the group of ranks ", absl::StrJoin(ranks, ", ")), now});
  auto ref = mailbox->await(Mailbox::keyOf(members.epoch, ranks), alive, now + timeout_, stopWaiting_);
  setJoining(std::nullopt);
  if (!ref.ok()) return ref.status();
  auto segment = Segment::open(*ref);
  if (!segment.ok()) {
    if (absl::Status status = alive(); !status.ok()) return status;
    return absl::DeadlineExceededError(
        absl::StrCat("rank ", founder.rank, " (process ", founder.pid, ") has given up waiting for the others"));
  }
  if (!Arena(segment->data()).isFor(ranks, segment->size())) {
    return absl::InternalError(absl::StrCat("rank ", founder.rank, " published another group's memory"));
  }
  return segment;
}

std::vector<BrokenGroup> ThreadGroupManager::Impl::broken() const {
  const std::lock_guard lock(mutex_);
  std::vector<BrokenGroup> broken;
  for (const auto& [ranks, epoch] : failedToMake_) broken.push_back({ranks, epoch});
  for (const auto& [ranks, made] : groups_) {
    if (!made.group->broken().ok()) broken.push_back({ranks, made.epoch});
  }
  return broken;
}

std::vector<RankWait> ThreadGroupManager::Impl::waits() const {
  const std::lock_guard lock(mutex_);
  std::vector<RankWait> waits;
  const auto add = [&waits](std::optional<RankWait> wait) {
    if (wait) waits.push_back(*std::move(wait));
  };
  for (const auto& [ranks, made] : groups_) add(made.group->wait());
  if (forming_ != nullptr) add(forming_->wait());
  add(joining_);
  return waits;
}

void ThreadGroupManager::Impl::abort(const absl::Status& why) {
  const std::lock_guard lock(mutex_);
  if (!aborted_.ok()) return;
  aborted_ = why;
  stopWaiting_.store(true, std::memory_order_release);
  for (auto& [ranks, made] : groups_) made.group->abort(why);
  if (forming_ != nullptr) forming_->abort(why);
}

ThreadGroupManager::ThreadGroupManager(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ThreadGroupManager::~ThreadGroupManager() = default;

absl::StatusOr<std::unique_ptr<ThreadGroupManager>> ThreadGroupManager::create(Rank rank,
                                                                               std::chrono::milliseconds timeout) {
  auto mailbox = Mailbox::create();
  if (!mailbox.ok()) return mailbox.status();
  return std::unique_ptr<ThreadGroupManager>(
      new ThreadGroupManager(std::make_unique<Impl>(rank, *std::move(mailbox), timeout)));
}

const PeerRef& ThreadGroupManager::self() const { return impl_->self(); }
void ThreadGroupManager::setPeers(std::vector<PeerRef> peers, std::uint64_t epoch,
                                  absl::Span<const std::vector<Rank>> renewed) {
  impl_->setPeers(std::move(peers), epoch, renewed);
}
absl::StatusOr<ThreadGroup*> ThreadGroupManager::group(const std::vector<Rank>& ranks) { return impl_->group(ranks); }
std::vector<BrokenGroup> ThreadGroupManager::broken() const { return impl_->broken(); }
std::vector<RankWait> ThreadGroupManager::waits() const { return impl_->waits(); }
void ThreadGroupManager::abort(const absl::Status& why) { impl_->abort(why); }

}  // namespace dtorch
