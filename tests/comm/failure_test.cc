// What the others see when one rank dies, stays away or leaves.
#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/catch.h"
#include "tests/comm/footprint.h"
#include "tests/comm/ranks.h"

namespace dtorch::testing {
namespace {

using Clock = std::chrono::steady_clock;

/// The highest rank kills itself at the point that the argument names; the others' calls must end within a second, with
/// an error that names it.
void killed(RankContext& context) {
  const bool victim = context.rank == context.size - 1;
  const auto die = [] { ::raise(SIGKILL); };
  if (victim && context.argument == "before the group") die();
  if (context.argument == "while the group is awaited") {
    // The first rank, who would found the group, comes when the last one is dead.
    if (victim) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    if (victim) die();
    if (context.rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
  const auto start = Clock::now();
  auto world = context.manager.group(context.all());
  absl::Status status = world.status();
  if (world.ok()) {
    if (victim && context.argument == "before a call") die();
    std::atomic<int> calls = 0;
    std::thread killer;
    if (victim) {
      killer = std::thread([&] {
        while (calls.load() < 3) std::this_thread::yield();
        die();
      });
    }
    // Small and large calls in turn, for ever: the death falls anywhere.
    const at::Tensor small = at::ones({10});
    const at::Tensor large = at::ones({1 << 20});
    auto call = start;
    for (int i = 0; status.ok() && i < 100000; ++i) {
      call = Clock::now();
      status = (*world)->allReduce(i % 2 == 0 ? small : large, ReduceOp::kSum, {}).status();
      ++calls;
    }
    context.check(Clock::now() - call < std::chrono::seconds(1), "a call outlived the death by a second");
    context.check(absl::IsUnavailable((*world)->barrier({})), "the group is used after a death");
    if (victim) killer.join();
    // Groups of the last but one epoch are destroyed: that waits for nobody.
    const auto dropped = Clock::now();
    for (const std::uint64_t epoch : {2, 3}) context.manager.setPeers({context.manager.self()}, epoch);
    context.check(Clock::now() - dropped < std::chrono::seconds(1), "destroying a group with a dead rank took long");
    context.check(context.manager.group({context.rank}).ok(), "no group after a death");
  }
  const auto took = Clock::now() - start;
  if (!world.ok() && context.size > 2) {
    // The survivors can go on without it. None leaves before: a slow one would name it instead.
    std::vector<Rank> survivors = context.all();
    survivors.pop_back();
    const auto rest = context.manager.group(survivors);
    context.check(rest.ok() && (*rest)->barrier({}).ok(), "no group of those that are left");
  }
  context.check(took < std::chrono::seconds(world.ok() ? 10 : 2), "it took too long");
  context.check(absl::IsUnavailable(status) &&
                    absl::StrContains(status.message(), absl::StrCat("rank ", context.size - 1)) &&
                    absl::StrContains(status.message(), "died"),
                status.ToString());
}
const RankRole kKilled("killed", killed);

/// Rank 1 stays away from a call, or from the group.
void absent(RankContext& context) {
  if (context.argument == "group") {
    if (context.rank == 1) return;
    const absl::Status status = context.manager.group(context.all()).status();
    context.check(absl::IsDeadlineExceeded(status), status.ToString());
    return;
  }
  ThreadGroup& group = context.world();
  if (context.rank == 1) return;
  const absl::Status status = group.allReduce(at::ones({3}), ReduceOp::kSum, {12, "aten::add"}).status();
  context.check(absl::IsDeadlineExceeded(status) && absl::StrContains(status.message(), "rank 1") &&
                    absl::StrContains(status.message(), "aten::add"),
                status.ToString());
}
const RankRole kAbsent("absent", absent);

/// The manager's abort ends a running call and the making of a group.
void managerAborted(RankContext& context) {
  if (context.rank == 1) return;
  std::atomic<bool> entered = false;
  std::thread aborter([&] {
    while (!entered.load()) std::this_thread::yield();
    context.manager.abort(absl::CancelledError("stop"));
  });
  entered = true;
  const absl::Status status = context.manager.group(context.all()).status();
  aborter.join();
  context.check(absl::IsCancelled(status) || absl::IsAborted(status), status.ToString());
  context.check(absl::IsCancelled(context.manager.group(context.all()).status()), "a group after abort()");
}
const RankRole kManagerAborted("manager aborted", managerAborted);

/// Threads of one rank that ask for groups at once get the same ones.
void concurrentLookups(RankContext& context) {
  std::vector<std::thread> threads;
  std::vector<ThreadGroup*> worlds(8);
  std::atomic<int> ready = 0;
  for (std::size_t i = 0; i < worlds.size(); ++i) {
    threads.emplace_back([&, i] {
      ++ready;
      while (ready.load() < static_cast<int>(worlds.size())) std::this_thread::yield();
      auto world = context.manager.group(context.all());
      if (world.ok()) worlds[i] = *world;
    });
  }
  for (std::thread& thread : threads) thread.join();
  context.check(worlds[0] != nullptr && std::count(worlds.begin(), worlds.end(), worlds[0]) == 8, "different groups");
  context.check(worlds[0] != nullptr && worlds[0]->barrier({}).ok(), "barrier");
}
const RankRole kConcurrentLookups("concurrent lookups", concurrentLookups);

/// Small ones and, each eleventh time, large ones.
void manyCalls(RankContext& context) {
  ThreadGroup& group = context.world();
  const std::vector<std::int64_t> lengths(static_cast<std::size_t>(context.size), 100);
  const at::Tensor small = at::ones({100});
  const at::Tensor large = at::ones({60000});
  Footprint before;
  for (int i = 0; i < 12000; ++i) {
    if (i == 2000) before = Footprint::now();
    const at::Tensor& input = i % 11 == 0 ? large : small;
    bool right = false;
    switch (i % 4) {
      case 0:
        right = group.allReduce(input, ReduceOp::kSum, {}).ok();
        break;
      case 1:
        right = group.allGather(small, 0, lengths, {}).ok();
        break;
      case 2:
        right = group.broadcast(input, i % context.size, {}).ok();
        break;
      default:
        right = group
                    .allToAll(std::vector<at::Tensor>(lengths.size(), input),
                              std::vector<std::vector<std::int64_t>>(lengths.size(), {input.numel()}), {})
                    .ok();
    }
    if (!right) return context.check(false, absl::StrCat("call ", i, " failed"));
  }
  const std::string growth = Footprint::now().growthSince(before);
  context.check(growth.empty(), growth);
}
const RankRole kManyCalls("many calls", manyCalls);

}  // namespace

TEST_CASE("COMM-1: a killed rank ends the others' calls with an error that names it") {
  for (const char* when : {"before the group", "while the group is awaited", "before a call", "during calls"}) {
    for (const int size : {2, 3}) {
      const auto outcomes = runRanks(Mode::kProcesses, size, "killed", when);
      for (std::size_t i = 0; i + 1 < outcomes.size(); ++i) {
        INFO(when << ", rank " << i << ": " << outcomes[i].failures);
        CHECK(outcomes[i].status == 0);
        CHECK(outcomes[i].failures.empty());
      }
      CHECK(outcomes.back().status == SIGKILL);
    }
  }
}

TEST_CASE("a rank that stays away is found by the deadline") {
  for (const char* what : {"group", "call"}) {
    const auto outcomes = runRanks(Mode::kThreads, 2, "absent", what, std::chrono::milliseconds(300));
    CHECK(outcomes[0].failures == "");
    CHECK(outcomes[1].failures == "");
  }
}

TEST_CASE("abort ends the wait for a group") { expectRanks(Mode::kThreads, 2, "manager aborted"); }

TEST_CASE("threads of a rank ask for groups at once") { expectRanks(Mode::kThreads, 3, "concurrent lookups"); }

TEST_CASE("10,000 calls leave nothing behind") {
  for (const char* memory : {"", "shared"}) expectRanks(Mode::kProcesses, 2, "many calls", memory);
}

const std::vector<std::vector<Rank>> kWorld = {{0, 1}};

TEST_CASE("1,000 groups, one after the other, leave nothing behind") {
  std::vector<std::unique_ptr<ThreadGroupManager>> managers;
  std::vector<PeerRef> peers;
  for (Rank rank = 0; rank < 2; ++rank) {
    managers.push_back(*ThreadGroupManager::create(rank, std::chrono::seconds(20)));
    peers.push_back(managers.back()->self());
  }
  Footprint before;
  for (std::uint64_t epoch = 1; epoch <= 1000; ++epoch) {
    if (epoch == 100) before = Footprint::now();
    for (auto& manager : managers) manager->setPeers(peers, epoch, kWorld);
    std::thread other([&] { CHECK(managers[1]->group({0, 1}).ok()); });
    CHECK(managers[0]->group({0, 1}).ok());
    other.join();
  }
  CHECK(Footprint::now().growthSince(before) == "");
}

TEST_CASE("a group that is renewed is a new one, others stay, and so does what they do meanwhile") {
  std::vector<std::unique_ptr<ThreadGroupManager>> managers;
  std::vector<PeerRef> peers;
  for (Rank rank = 0; rank < 3; ++rank) {
    managers.push_back(*ThreadGroupManager::create(rank, std::chrono::seconds(20)));
    peers.push_back(managers.back()->self());
  }
  const std::vector<Rank> kept = {0, 1};
  const std::vector<Rank> other = {0, 2};
  for (auto& manager : managers) manager->setPeers(peers, 1);
  const auto both = [](auto first, auto second) {
    std::thread thread(second);
    first();
    thread.join();
  };
  const auto make = [&](std::size_t rank, const std::vector<Rank>& ranks) {
    return [&, rank] { CHECK(managers[rank]->group(ranks).ok()); };
  };
  both(make(0, kept), make(1, kept));
  both(make(0, other), make(2, other));
  ThreadGroup* const before = *managers[0]->group(kept);
  std::array<absl::Status, 2> statuses;
  const auto reduce = [&](std::size_t rank, bool renews) {
    return [&, rank, renews] {
      for (std::uint64_t i = 0; statuses[rank].ok() && i < 2000; ++i) {
        if (renews && i % 100 == 0) managers[rank]->setPeers(peers, 2 + i, {&other, 1});
        absl::StatusOr<ThreadGroup*> group = managers[rank]->group(kept);
        statuses[rank] = group.status();
        if (group.ok()) statuses[rank] = (*group)->allReduce(at::ones({5}), ReduceOp::kSum, {i, "kept"}).status();
      }
    };
  };
  both(reduce(0, true), reduce(1, false));
  CHECK(statuses[0].ToString() == "OK");
  CHECK(statuses[1].ToString() == "OK");
  CHECK(*managers[0]->group(kept) == before);
  for (auto& manager : managers) manager->setPeers(peers, 5000, {&other, 1});
  both(make(0, other), make(2, other));
  // Rank 2 is another process now.
  managers[2] = *ThreadGroupManager::create(2, std::chrono::seconds(20));
  peers[2] = managers[2]->self();
  for (auto& manager : managers) manager->setPeers(peers, 5001);
  both(make(0, other), make(2, other));
  CHECK(*managers[0]->group(kept) == before);
}

TEST_CASE("groups are rebuilt with a new epoch") {
  std::vector<std::unique_ptr<ThreadGroupManager>> managers;
  std::vector<PeerRef> peers;
  for (Rank rank = 0; rank < 2; ++rank) {
    managers.push_back(*ThreadGroupManager::create(rank, std::chrono::seconds(20)));
    peers.push_back(managers.back()->self());
  }
  for (std::uint64_t epoch = 1; epoch < 5; ++epoch) {
    for (auto& manager : managers) manager->setPeers(peers, epoch, kWorld);
    std::vector<std::thread> threads;
    std::vector<absl::Status> statuses(2);
    for (std::size_t r = 0; r < 2; ++r) {
      threads.emplace_back([&, r] {
        auto group = managers[r]->group({0, 1});
        statuses[r] = group.ok() ? (*group)->barrier({}) : group.status();
        if (group.ok() && r == 0) (*group)->abort(absl::InternalError("broken on purpose"));
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(statuses[0].ToString() == "OK");
    CHECK(statuses[1].ToString() == "OK");
  }
  CHECK(absl::IsNotFound(managers[0]->group({0, 7}).status()));
  CHECK(absl::IsInvalidArgument(managers[0]->group({1}).status()));
}

TEST_CASE("a group whose calls differed is as good as new after it is rebuilt") {  // nccl#1417, nccl#1394
  std::vector<std::unique_ptr<ThreadGroupManager>> managers;
  std::vector<PeerRef> peers;
  for (Rank rank = 0; rank < 2; ++rank) {
    managers.push_back(*ThreadGroupManager::create(rank, std::chrono::seconds(20)));
    peers.push_back(managers.back()->self());
  }
  for (std::uint64_t epoch = 1; epoch < 4; ++epoch) {
    for (auto& manager : managers) manager->setPeers(peers, epoch, kWorld);
    std::array<absl::StatusOr<at::Tensor>, 2> right;
    std::array<absl::Status, 2> wrong;
    const auto rank = [&](std::size_t r) {
      ThreadGroup* group = *managers[r]->group({0, 1});
      right[r] = group->allReduce(at::full({5}, 1.0 + static_cast<double>(r)), ReduceOp::kSum, {1, "right"});
      wrong[r] = group->allReduce(at::ones({r == 0 ? 2 : 4}), ReduceOp::kSum, {2, "wrong"}).status();
    };
    std::thread other([&] { rank(1); });
    rank(0);
    other.join();
    for (std::size_t r = 0; r < 2; ++r) {
      REQUIRE(right[r].ok());
      CHECK(at::equal(*right[r], at::full({5}, 3.0)));
      CHECK(absl::IsFailedPrecondition(wrong[r]));
      const std::vector<BrokenGroup> broken = managers[r]->broken();
      REQUIRE(broken.size() == 1);
      CHECK(broken[0].ranks == kWorld[0]);
      CHECK(broken[0].epoch == epoch);
    }
  }
}

TEST_CASE("a peer that leaves ends the waits of the others") {
  auto first = *ThreadGroupManager::create(0, std::chrono::seconds(20));
  auto second = *ThreadGroupManager::create(1, std::chrono::seconds(20));
  for (auto* manager : {first.get(), second.get()}) manager->setPeers({first->self(), second->self()}, 1);
  std::thread other([&] {
    CHECK(second->group({0, 1}).ok());
    second.reset();
  });
  auto group = first->group({0, 1});
  REQUIRE(group.ok());
  const absl::Status status = (*group)->barrier({});
  other.join();
  CHECK(absl::IsUnavailable(status));
  CHECK(absl::StrContains(status.message(), "rank 1 left"));
}

}  // namespace dtorch::testing
