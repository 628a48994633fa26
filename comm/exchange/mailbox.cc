#include "comm/exchange/mailbox.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/exchange/call.h"
#include "shm/futex.h"

namespace dtorch {
namespace {
constexpr std::size_t kNotices = 4096;
constexpr std::chrono::milliseconds kLookAround{50};

/// `version` is odd while the rest is being written (a sequence lock with one writer). Each store releases and each
/// load acquires, so that neither side needs a fence, which the thread sanitizer does not know.
struct Notice {
  std::atomic<std::uint64_t> version;
  std::atomic<std::uint64_t> epoch;
  std::atomic<std::uint64_t> digest;
  std::atomic<std::int64_t> pid;
  std::atomic<std::int32_t> fd;
  std::atomic<std::uint64_t> inode;
  std::atomic<std::uint64_t> bytes;
};
}  // namespace

struct Mailbox::Board {
  std::atomic<std::uint32_t> changes;
  std::array<Notice, kNotices> notices;
};

Mailbox::Key Mailbox::keyOf(std::uint64_t epoch, const std::vector<Rank>& ranks) {
  Call digest;
  digest.mix({static_cast<std::int64_t>(ranks.size())});
  digest.mix({ranks.begin(), ranks.end()});
  return {epoch, digest.digest};
}

Mailbox::Mailbox(Segment segment) : segment_(std::move(segment)), board_(reinterpret_cast<Board*>(segment_.data())) {}

absl::StatusOr<Mailbox> Mailbox::create() {
  auto segment = Segment::create("dtorch-mailbox", sizeof(Board));
  if (!segment.ok()) return segment.status();
  return Mailbox(std::move(*segment));
}

absl::StatusOr<Mailbox> Mailbox::open(const SegmentRef& ref) {
  auto segment = Segment::open(ref);
  if (!segment.ok()) return segment.status();
  if (segment->size() != sizeof(Board)) return absl::InvalidArgumentError("the segment is no mailbox");
  return Mailbox(std::move(*segment));
}

absl::Status Mailbox::publish(const Key& key, const SegmentRef& what) {
  const auto free = std::find_if(board_->notices.begin(), board_->notices.end(), [&key](const Notice& n) {
    return n.version.load(std::memory_order_relaxed) == 0 || n.epoch.load(std::memory_order_relaxed) < key.epoch;
  });
  if (free == board_->notices.end()) {
    return absl::ResourceExhaustedError(absl::StrCat("a rank can found ", kNotices, " groups at a time"));
  }
  const std::uint64_t version = free->version.load(std::memory_order_relaxed);
  free->version.store(version + 1, std::memory_order_relaxed);
  free->epoch.store(key.epoch, std::memory_order_release);
  free->digest.store(key.digest, std::memory_order_release);
  free->pid.store(what.pid, std::memory_order_release);
  free->fd.store(what.fd, std::memory_order_release);
  free->inode.store(what.inode, std::memory_order_release);
  free->bytes.store(what.bytes, std::memory_order_release);
  free->version.store(version + 2, std::memory_order_release);
  board_->changes.fetch_add(1, std::memory_order_seq_cst);
  futexWakeAll(board_->changes);
  return absl::OkStatus();
}

std::optional<SegmentRef> Mailbox::find(const Key& key) const {
  for (const Notice& notice : board_->notices) {
    const std::uint64_t version = notice.version.load(std::memory_order_acquire);
    if (version == 0) return std::nullopt;  // they are filled from the front
    const Key found{notice.epoch.load(std::memory_order_acquire), notice.digest.load(std::memory_order_acquire)};
    const SegmentRef ref{notice.pid.load(std::memory_order_acquire), notice.fd.load(std::memory_order_acquire),
                         notice.inode.load(std::memory_order_acquire), notice.bytes.load(std::memory_order_acquire)};
    const bool whole = version % 2 == 0 && notice.version.load(std::memory_order_relaxed) == version;
    if (whole && found == key) return ref;
  }
  return std::nullopt;
}

absl::StatusOr<SegmentRef> Mailbox::await(const Key& key, const std::function<absl::Status()>& alive,
                                          std::chrono::steady_clock::time_point deadline,
                                          const std::atomic<bool>& aborted) const {
  for (;;) {
    const std::uint32_t changes = board_->changes.load(std::memory_order_seq_cst);
    if (auto found = find(key)) return *found;
    if (aborted.load(std::memory_order_acquire)) return absl::AbortedError("the wait for a group was aborted");
    if (absl::Status status = alive(); !status.ok()) return status;
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left.count() <= 0) return absl::DeadlineExceededError("its first rank did not found the group");
    futexWait(board_->changes, changes, std::min<std::chrono::nanoseconds>(kLookAround, left));
  }
}

}  // namespace dtorch
