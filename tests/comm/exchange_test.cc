// The engine below tensors, by threads on one block of memory: also run under the thread sanitizer.
#include "comm/exchange/exchange.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "comm/exchange/mailbox.h"
#include "comm/exchange/tensor_board.h"
#include "tests/catch.h"

namespace {
thread_local std::size_t allocations = 0;
}  // namespace

// Counts those of each thread; new[] and the rest come here as well. Not with the address sanitizer, which has its own.
#if !defined(__SANITIZE_ADDRESS__)
void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*bytes*/) noexcept { std::free(memory); }
#endif

namespace dtorch {
namespace {

void addInts(std::byte* out, const std::byte* const* inputs, int count, std::size_t elements) {
  for (std::size_t i = 0; i < elements; ++i) {
    int sum = 0;
    for (int r = 0; r < count; ++r) sum += reinterpret_cast<const int*>(inputs[r])[i];
    reinterpret_cast<int*>(out)[i] = sum;
  }
}
const ReduceKernel kAddInts{addInts, sizeof(int)};

/// Runs `body` as each rank of a group on zeroed memory.
void runGroup(int ranks, const std::function<void(Exchange&)>& body,
              std::chrono::milliseconds timeout = std::chrono::seconds(30),
              GroupBackend backend = GroupBackend::kMemory) {
  const std::size_t bytes = Arena::bytesFor(ranks);
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  const std::unique_ptr<std::byte, Free> memory(
      static_cast<std::byte*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096)));
  std::memset(memory.get(), 0, bytes);
  std::vector<Rank> names(static_cast<std::size_t>(ranks));
  std::iota(names.begin(), names.end(), 10);
  const Arena arena = Arena::format(memory.get(), names);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      std::vector<ProcessWatch> watches(names.size());
      // As if rank 0 were of another process; no memory is shared, so that what is large goes through chunks.
      if (backend == GroupBackend::kFile) watches[0] = *ProcessWatch::open(::getpid());
      Exchange exchange(arena, r, std::move(watches), std::make_shared<PeerMemory>(nullptr), timeout);
      if (exchange.backend() != backend) std::abort();
      body(exchange);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

Call callOf(CallKind kind) {
  Call call;
  call.kind = kind;
  return call;
}

/// The locksteps of two ranks that take turns on this thread.
class PairOnOneThread {
  std::vector<std::max_align_t> memory_ =
      std::vector<std::max_align_t>(Arena::bytesFor(2) / sizeof(std::max_align_t) + 256);
  Arena arena_ = Arena::format(aligned(), {0, 1});

  std::byte* aligned() {
    return reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(memory_.data()) + 4095) / 4096 * 4096);
  }

 public:
  Lockstep first = Lockstep(arena_, 0, std::vector<ProcessWatch>(2));
  Lockstep second = Lockstep(arena_, 1, std::vector<ProcessWatch>(2));

  static absl::Status await(Lockstep& self, std::chrono::seconds patience = std::chrono::seconds(30)) {
    return self.awaitAll(std::chrono::steady_clock::now() + patience, callOf(CallKind::kBarrier));
  }
};

std::vector<int> values(int rank, std::size_t count) {
  std::vector<int> v(count);
  std::iota(v.begin(), v.end(), rank * 1000);
  return v;
}
const std::byte* bytes(const std::vector<int>& v) { return reinterpret_cast<const std::byte*>(v.data()); }
std::byte* bytes(std::vector<int>& v) { return reinterpret_cast<std::byte*>(v.data()); }

}  // namespace

TEST_CASE("threads reduce, spread and swap in turn") {
  const auto backend = GENERATE(GroupBackend::kMemory, GroupBackend::kFile);
  for (const int ranks : {1, 2, 5}) {
    const auto inTurn = [ranks](Exchange& exchange) {
      for (const std::size_t count : {1, 100, 50000}) {
        const std::vector<int> mine = values(exchange.self(), count);
        std::vector<int> sum(count);
        bool right =
            exchange.allReduce(callOf(CallKind::kAllReduce), bytes(mine), bytes(sum), count * 4, kAddInts, -1).ok();
        for (std::size_t i = 0; i < count; ++i) {
          right = right && sum[i] == ranks * static_cast<int>(i) + 1000 * ranks * (ranks - 1) / 2;
        }
        std::vector<std::vector<int>> all(static_cast<std::size_t>(ranks), std::vector<int>(count));
        std::vector<Rows> incoming;
        for (auto& part : all) incoming.push_back(contiguousRows(bytes(part), count * 4));
        right = right &&
                exchange.spread(callOf(CallKind::kAllGather), contiguousRows(bytes(mine), count * 4), incoming).ok();
        for (int r = 0; r < ranks; ++r) right = right && all[static_cast<std::size_t>(r)] == values(r, count);
        const std::vector<ConstRows> outgoing(static_cast<std::size_t>(ranks), contiguousRows(bytes(mine), count * 4));
        right = right && exchange.swap(callOf(CallKind::kAllToAll), outgoing, incoming).ok();
        right = right && exchange.reduceScatter(callOf(CallKind::kReduceScatter), outgoing, bytes(sum), kAddInts).ok();
        right = right && sum[0] == 1000 * ranks * (ranks - 1) / 2;
        if (!right) std::abort();
      }
    };
    runGroup(ranks, inTurn, std::chrono::seconds(30), backend);
  }
}

TEST_CASE("small messages are exchanged without an allocation") {
  runGroup(2, [](Exchange& exchange) {
    const std::vector<int> mine = values(exchange.self(), 100);
    std::vector<int> sum(100);
    std::vector<std::vector<int>> all(2, std::vector<int>(100));
    const std::vector<Rows> incoming = {contiguousRows(bytes(all[0]), 400), contiguousRows(bytes(all[1]), 400)};
    const std::vector<ConstRows> outgoing(2, contiguousRows(bytes(mine), 400));
    std::size_t before = 0;
    bool right = true;
    for (int i = 0; i < 50; ++i) {
      if (i == 10) before = allocations;
      right = right && exchange.barrier(callOf(CallKind::kBarrier)).ok();
      right =
          right && exchange.allReduce(callOf(CallKind::kAllReduce), bytes(mine), bytes(sum), 400, kAddInts, -1).ok();
      right = right && exchange.spread(callOf(CallKind::kAllGather), outgoing[0], incoming).ok();
      right = right && exchange.swap(callOf(CallKind::kAllToAll), outgoing, incoming).ok();
      right = right && exchange.reduceScatter(callOf(CallKind::kReduceScatter), outgoing, bytes(sum), kAddInts).ok();
    }
    if (!right || allocations != before) std::abort();
  });
}

// Not with sanitizers, which call the system themselves.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
namespace {

/// From now on this thread may end its process; its calls of `harmless` fail, any other call of the system kills it.
void denySystemCalls(std::initializer_list<unsigned> harmless) {
  std::vector<sock_filter> filter = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                                     BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1),
                                     BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  for (const unsigned call : harmless) {
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1));
    filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN));
  }
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    std::abort();
  }
}

/// How a process of its own ends that calls `body`: 0 or its exit code, less than 0: the signal that killed it, SIGALRM
/// after a minute.
int endOf(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit none{0, 0};
    ::setrlimit(RLIMIT_CORE, &none);
    ::alarm(60);
    body();
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

/// Whether this system lets a process deny itself calls.
bool callsAreDeniable() {
  if (endOf([] { denySystemCalls({}); }) == 0) return true;
  WARN("SKIP: seccomp filters are not allowed here");
  return false;
}

}  // namespace

// Where the system's clock takes a call this fails: a clock is read for each wait.
TEST_CASE("no system call is made for a peer that is quick") {
  if (!callsAreDeniable()) return;
  PairOnOneThread pair;
  const auto steps = [&](bool quick) {
    denySystemCalls({});
    for (int i = 0; i < 100; ++i) {
      pair.first.step();
      if (quick) pair.second.step();
      if (!pair.await(pair.first).ok() || !pair.await(pair.second).ok()) std::abort();
    }
  };
  CHECK(endOf([&] { steps(true); }) == 0);
  CHECK(endOf([&] { steps(false); }) == -SIGSYS);
}

TEST_CASE("small messages call the system only to sleep, to wake, and to leave a processor") {
  if (!callsAreDeniable()) return;
  const int end = endOf([] {
    std::atomic<int> right{0};
    std::atomic<int> ended{0};
    runGroup(2, [&](Exchange& exchange) {
      const std::vector<int> mine = values(exchange.self(), 100);
      std::vector<int> sum(100);
      const auto reduce = [&] {
        return exchange.allReduce(callOf(CallKind::kAllReduce), bytes(mine), bytes(sum), 400, kAddInts, -1).ok();
      };
      bool all = reduce();
      denySystemCalls({SYS_futex, SYS_sched_getaffinity, SYS_sched_setaffinity});
      for (int i = 0; i < 100; ++i) all = reduce() && all;
      if (all && sum[99] == 1198) ++right;
      if (++ended == 2) ::_exit(right == 2 ? 0 : 1);
      while (true) __builtin_ia32_pause();  // the other one ends the process: to end a thread takes calls
    });
  });
  CHECK(end == 0);
}
#endif

TEST_CASE("a rank leaves the processor that it shares with the one it waits for") {
  cpu_set_t allowed;
  REQUIRE(::sched_getaffinity(0, sizeof(allowed), &allowed) == 0);
  if (CPU_COUNT(&allowed) < 2) {
    WARN("SKIP: there is one processor");
    return;
  }
  constexpr int kRounds = 20;
  int moves = 0;
  for (int i = 0; i < kRounds; ++i) {
    PairOnOneThread pair;
    pair.second.step();
    pair.first.step();
    REQUIRE(pair.await(pair.first).ok());
    pair.first.step();
    const int together = ::sched_getcpu();
    CHECK(absl::IsDeadlineExceeded(pair.await(pair.first, std::chrono::seconds(0))));
    moves += ::sched_getcpu() == together ? 0 : 1;
  }
  CHECK(moves > kRounds / 2);
  cpu_set_t now;
  REQUIRE(::sched_getaffinity(0, sizeof(now), &now) == 0);
  CHECK(CPU_EQUAL(&now, &allowed));
}

TEST_CASE("ranks that were asleep are woken") {
  runGroup(3, [](Exchange& exchange) {
    for (int i = 0; i < 300; ++i) {
      if (i % 3 == exchange.self()) std::this_thread::yield();
      if (!exchange.barrier(callOf(CallKind::kBarrier)).ok()) std::abort();
    }
  });
}

TEST_CASE("a mismatch is the same error on all ranks, and stays") {
  runGroup(3, [](Exchange& exchange) {
    const Call call = callOf(exchange.self() == 2 ? CallKind::kBarrier : CallKind::kGather);
    const absl::Status status = exchange.barrier(call);
    if (!absl::IsFailedPrecondition(status) ||
        !absl::StrContains(status.message(), "rank 10 calls gather, rank 12 calls barrier")) {
      std::abort();
    }
    if (exchange.barrier(call) != status) std::abort();
  });
}

TEST_CASE("breaking a group from another thread ends its calls") {
  runGroup(2, [](Exchange& exchange) {
    if (exchange.self() == 0) return exchange.lockstep().breakGroup(absl::AbortedError("enough"));
    if (exchange.barrier(callOf(CallKind::kBarrier)) != absl::AbortedError("enough")) std::abort();
  });
}

TEST_CASE("ranks that break a group at once all see one reason, whole") {
  constexpr int kRanks = 2;
  constexpr int kRounds = 300;
  const std::size_t bytes = Arena::bytesFor(kRanks);
  std::vector<std::uint64_t> memory(bytes / sizeof(std::uint64_t) + 16);
  void* aligned = memory.data();
  std::size_t room = memory.size() * sizeof(std::uint64_t);
  REQUIRE(std::align(128, bytes, aligned, room) != nullptr);
  const Arena arena = Arena::format(static_cast<std::byte*>(aligned), {10, 11});
  std::array<std::atomic<int>, 3 * kRounds> arrived{};
  const auto meet = [&arrived](int point) {
    ++arrived[static_cast<std::size_t>(point)];
    for (int spin = 0; arrived[static_cast<std::size_t>(point)] < kRanks; ++spin) {
      if (spin > 1000) std::this_thread::yield();
    }
  };
  std::array<absl::Status, kRanks> seen;
  std::atomic<int> wrong = 0;
  const auto rank = [&](int self) {
    // Another one each round, so that what is left of the last one shows.
    const auto reasonOf = [](int of, int round) {
      return std::string(2000, static_cast<char>('a' + 13 * of + round % 13));
    };
    for (int round = 0; round < kRounds; ++round) {
      const absl::Status mine = absl::InternalError(reasonOf(self, round));
      Lockstep lockstep(arena, self, std::vector<ProcessWatch>(kRanks));
      meet(3 * round);
      lockstep.breakGroup(mine);
      seen[static_cast<std::size_t>(self)] = lockstep.broken();
      meet(3 * round + 1);
      if (self == 0) {
        const bool whole = seen[0].message() == reasonOf(0, round) || seen[0].message() == reasonOf(1, round);
        if (!whole || seen[0] != seen[1]) ++wrong;
        arena.breaker() = 0;
      }
      meet(3 * round + 2);
    }
  };
  std::thread other([&] { rank(1); });
  rank(0);
  other.join();
  CHECK(wrong == 0);
}

TEST_CASE("a rank that does not come is named at the deadline") {
  runGroup(
      2,
      [](Exchange& exchange) {
        if (exchange.self() == 0) return;
        const absl::Status status = exchange.barrier(callOf(CallKind::kBarrier));
        if (!absl::IsDeadlineExceeded(status) || !absl::StrContains(status.message(), "rank 10")) std::abort();
      },
      std::chrono::milliseconds(100));
}

TEST_CASE("rows of any length are copied into rows of any other") {
  std::vector<char> from(60);
  std::iota(from.begin(), from.end(), 0);
  std::vector<char> to(60);
  const ConstRows in{reinterpret_cast<const std::byte*>(from.data()), 4, 6, 15};
  const Rows out{reinterpret_cast<std::byte*>(to.data()), 3, 8, 20};
  copyRows(in, out);
  for (int i = 0; i < 24; ++i)
    CHECK(to[static_cast<std::size_t>(i / 8 * 20 + i % 8)] == from[static_cast<std::size_t>(i / 6 * 15 + i % 6)]);
  std::vector<char> middle(7);
  readRows(in, 4, reinterpret_cast<std::byte*>(middle.data()), 7);
  CHECK(middle == std::vector<char>{4, 5, 15, 16, 17, 18, 19});
}

TEST_CASE("notices are found by key, awaited, and make room with their epoch") {
  auto mailbox = Mailbox::create();
  REQUIRE(mailbox.ok());
  const std::atomic<bool> never = false;
  const auto soon = [] { return std::chrono::steady_clock::now() + std::chrono::seconds(60); };
  std::thread publisher([&] {
    for (int i = 0; i < 300; ++i) {
      if (!mailbox->publish(Mailbox::keyOf(1, {i, 1}), {i, 7, 8, 9}).ok()) std::abort();
    }
  });
  const auto alive = [] { return absl::OkStatus(); };
  CHECK(mailbox->await(Mailbox::keyOf(1, {299, 1}), alive, soon(), never)->pid == 299);
  publisher.join();
  CHECK(mailbox->await(Mailbox::keyOf(1, {17, 1}), alive, soon(), never)->pid == 17);
  CHECK(absl::IsDeadlineExceeded(
      mailbox->await(Mailbox::keyOf(2, {17, 1}), alive, std::chrono::steady_clock::now(), never).status()));
  const auto dead = [] { return absl::UnavailableError("rank 1 died"); };
  CHECK(mailbox->await(Mailbox::keyOf(2, {17, 1}), dead, soon(), never).status() == dead());
  const std::atomic<bool> aborted = true;
  CHECK(absl::IsAborted(mailbox->await(Mailbox::keyOf(2, {17, 1}), alive, soon(), aborted).status()));
  for (int i = 0; i < 4096; ++i) REQUIRE(mailbox->publish(Mailbox::keyOf(2, {i}), {i, 1, 1, 1}).ok());
  CHECK(absl::IsResourceExhausted(mailbox->publish(Mailbox::keyOf(2, {5000}), {1, 1, 1, 1})));
}

TEST_CASE("groups of other ranks, or of the same in another order, have other keys") {
  std::vector<std::vector<Rank>> groups = {{}};
  std::set<std::uint64_t> digests;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    digests.insert(Mailbox::keyOf(1, groups[i]).digest);
    for (Rank rank = 0; rank < 6 && groups[i].size() < 6; ++rank) {
      if (std::count(groups[i].begin(), groups[i].end(), rank) != 0) continue;
      groups.push_back(groups[i]);
      groups.back().push_back(rank);
    }
  }
  CHECK(groups.size() == 1957);
  CHECK(digests.size() == groups.size());
  CHECK_FALSE(Mailbox::keyOf(1, {0, 1}) == Mailbox::keyOf(2, {0, 1}));
}

TEST_CASE("a board orders what its owner and its readers do") {
  std::vector<std::uint64_t> memory(TensorBoard::bytes() / sizeof(std::uint64_t) + 1);
  std::vector<std::uint64_t> readersMemory(memory.size());
  // Two boards, as in the store: readers ring the owner's, the owner rings the readers', which they share here.
  const TensorBoard board(reinterpret_cast<std::byte*>(memory.data()));
  const TensorBoard bell(reinterpret_cast<std::byte*>(readersMemory.data()));
  constexpr int kReaders = 3;
  constexpr std::uint64_t kRounds = 3000;
  std::vector<std::uint64_t> content(100);
  const auto soon = [] { return std::chrono::steady_clock::now() + std::chrono::milliseconds(50); };
  std::atomic<int> wrong = 0;
  std::vector<std::thread> readers;
  for (int r = 0; r < kReaders; ++r) {
    readers.emplace_back([&] {
      for (std::uint64_t round = 1; round <= kRounds; ++round) {
        TensorBoard::Entry* entry = nullptr;
        for (;;) {
          const std::uint32_t seen = bell.changes();
          if ((entry = board.find("key", round - 1)) != nullptr) break;
          bell.awaitChange(seen, soon());
        }
        const bool same = entry->what.data.address == round && content.front() == round && content.back() == round;
        if (!same || !TensorBoard::finish(*entry, round, round % 2 == 0 ? "odd" : "")) ++wrong;
        board.ring();
      }
    });
  }
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    std::fill(content.begin(), content.end(), round);
    TensorBoard::Description what;
    what.data.address = round;
    TensorBoard::Entry* entry = board.set("key", what, kReaders, round);
    REQUIRE(entry != nullptr);
    bell.ring();
    for (;;) {
      const std::uint32_t seen = board.changes();
      if (entry->finished.load(std::memory_order_acquire) == kReaders) break;
      board.awaitChange(seen, soon());
    }
    const bool refused = entry->refused.load(std::memory_order_relaxed) != 0;
    if (refused != (round % 2 == 0) || (refused && std::string(entry->reason.data()) != "odd")) ++wrong;
    CHECK_FALSE(TensorBoard::finish(*entry, round, ""));  // one more than announced
    TensorBoard::free(*entry);
  }
  for (std::thread& reader : readers) reader.join();
  CHECK(wrong == 0);
  CHECK(board.find("key", 0) == nullptr);
  TensorBoard::Entry* last = nullptr;
  for (std::size_t i = 0; i < TensorBoard::kEntries; ++i) last = board.set("key", {}, 1, kRounds + 1 + i);
  REQUIRE(last != nullptr);
  CHECK(board.set("key", {}, 1, 2 * kRounds) == nullptr);
  CHECK_FALSE(TensorBoard::finish(*last, 1, ""));  // of an earlier round
}

}  // namespace dtorch
