#include "comm/store/tensor_store.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "comm/store/shared_allocator.h"
#include "tests/catch.h"
#include "tests/comm/footprint.h"
#include "tests/comm/ranks.h"

namespace dtorch::testing {
namespace {

TensorStore::Deadline in(int seconds) { return std::chrono::steady_clock::now() + std::chrono::seconds(seconds); }

/// This rank's store, which knows those of `ranks`.
std::unique_ptr<TensorStore> openStore(RankContext& context, const std::vector<Rank>& ranks) {
  auto store = *TensorStore::create(context.rank, sharedHeap());
  at::Tensor self = at::empty({static_cast<std::int64_t>(sizeof(TensorStore::Peer))}, at::kByte);
  std::memcpy(self.mutable_data_ptr(), &store->self(), sizeof(TensorStore::Peer));
  const std::vector<std::int64_t> lengths(ranks.size(), self.numel());
  const at::Tensor all = *(*context.manager.group(ranks))->allGather(self, 0, lengths, {});
  std::vector<TensorStore::Peer> peers(ranks.size());
  std::memcpy(peers.data(), all.const_data_ptr(), all.nbytes());
  context.check(store->setPeers(peers).ok(), "setPeers");
  return store;
}
std::unique_ptr<TensorStore> openStore(RankContext& context) { return openStore(context, context.all()); }

/// A tensor whose memory is a file's.
at::Tensor tensorInFile(const std::vector<float>& numbers) {
  std::string path = (std::filesystem::temp_directory_path() / "dtorch-store-test-XXXXXX").string();
  const int file = ::mkstemp(path.data());
  const std::size_t bytes = numbers.size() * sizeof(float);
  if (file < 0 || ::write(file, numbers.data(), bytes) != static_cast<ssize_t>(bytes)) std::abort();
  ::close(file);
  at::Tensor tensor = at::from_file(path, /*shared=*/false, static_cast<std::int64_t>(numbers.size()), at::kFloat);
  std::filesystem::remove(path);
  return tensor;
}

/// Rank 0 sets, all others read; keys are used again and again.
void handOver(RankContext& context) {
  const auto store = openStore(context);
  std::vector<at::Tensor> values = {
      at::arange(100000, at::kFloat),
      at::arange(200000, at::kDouble).reshape({400, 500}).t(),
      at::arange(60000, at::kInt).reshape({200, 300}).slice(1, 5, 290, 3),
      at::ones({3}).expand({70000, 3}),
      at::empty({4, 0, 2}),
      at::tensor(2.5),
      at::complex(at::arange(5, at::kDouble), at::ones({5}, at::kDouble)).conj(),
  };
  for (const auto type : {at::kBool, at::kByte, at::kChar, at::kUInt16, at::kShort, at::kUInt32, at::kInt, at::kUInt64,
                          at::kLong, at::kHalf, at::kBFloat16, at::kDouble, at::kComplexHalf, at::kComplexFloat,
                          at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kFloat8_e4m3fnuz, at::kFloat8_e5m2fnuz}) {
    values.push_back(at::arange(70000, at::kLong).remainder(3).to(type));
  }
  for (int round = 0; round < 3; ++round) {
    for (const at::Tensor& value : values) {
      if (context.rank == 0) {
        context.check(store->srcSet("key", value, context.size - 1).ok(), "srcSet");
        context.check(absl::IsAlreadyExists(store->srcSet("key", value, 1)), "a set key is set again");
        context.check(store->srcWaitUntilGetFinished("key", in(20)).ok(), "srcWaitUntilGetFinished");
        continue;
      }
      auto view = store->destGet(0, "key", in(20));
      if (!view.ok()) return context.check(false, view.status().ToString());
      const at::Tensor got = view->contiguous();
      const at::Tensor wanted = value.resolve_conj().contiguous();
      const bool same =
          got.sizes() == wanted.sizes() && got.scalar_type() == wanted.scalar_type() &&
          (got.numel() == 0 || std::memcmp(got.const_data_ptr(), wanted.const_data_ptr(), got.nbytes()) == 0);
      context.check(same, absl::StrCat("another tensor than ", value.numel(), " elements of ",
                                       at::toString(value.scalar_type())));
      context.check(store->destFinishGet(0, "key").ok(), "destFinishGet");
      context.check(absl::IsFailedPrecondition(store->destFinishGet(0, "key")), "finished twice");
    }
  }
  // What no allocator of ours made: a file's memory is copied, a layout without strides is refused.
  const std::vector<float> numbers = {1, 2, 3, 4};
  if (context.rank == 0) {
    context.check(store->srcSet("file", tensorInFile(numbers), context.size - 1).ok(), "srcSet of from_file");
    context.check(store->srcWaitUntilGetFinished("file", in(20)).ok(), "srcWaitUntilGetFinished");
    const bool refused =
        !at::hasMKLDNN() || absl::IsInvalidArgument(store->srcSet("opaque", at::ones({2, 3}).to_mkldnn(), 1));
    context.check(refused, "an opaque layout");
  } else {
    const auto view = store->destGet(0, "file", in(20));
    context.check(view.ok() && at::equal(*view, at::tensor(numbers)), "the memory of a file");
    context.check(store->destFinishGet(0, "file").ok(), "destFinishGet");
  }
  if (context.rank == 0) {
    context.check(store->srcSet("copy", values[0], context.size - 1).ok(), "srcSet");
    context.check(store->srcWaitUntilGetFinished("copy", in(20)).ok(), "srcWaitUntilGetFinished");
  } else {
    auto copy = store->destGetAndToDevice(0, "copy", at::kCPU, in(20));
    context.check(copy.ok() && at::equal(*copy, values[0]), "destGetAndToDevice");
  }
  context.check(context.world().barrier({}).ok(), "barrier");
  const auto nobody = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
  context.check(absl::IsDeadlineExceeded(store->destGet(0, "never", nobody).status()), "a key that is never set");
  const auto nothing = store->destTryGet(0, "never");
  context.check(nothing.ok() && !*nothing, "destTryGet() of a key that is never set");
  // A reader that refuses says why.
  if (context.rank == 0) {
    context.check(store->srcSet("odd", values[1], context.size - 1).ok(), "srcSet");
    const absl::Status refused = store->srcWaitUntilGetFinished("odd", in(20));
    context.check(absl::IsFailedPrecondition(refused) && absl::StrContains(refused.message(), "key odd: too odd"),
                  refused.ToString());
    context.check(store->srcSet("odd", values[1], 1).ok(), "a refused key is free");
  } else {
    context.check(store->destGet(0, "odd", in(20)).ok(), "destGet");
    context.check(store->destFinishGet(0, "odd", absl::InvalidArgumentError("too odd")).ok(), "destFinishGet");
  }
  // What nobody has read is gone after a reset, and all that nobody waits for too.
  context.check(store->reset(in(20)).ok(), "reset");
  if (context.rank == 0) context.check(store->srcSet("odd", values[1], 1).ok(), "a key is set after a reset");
  const auto gone = store->reset(in(20));
  const auto found = store->destTryGet(0, "odd");
  context.check(gone.ok() && found.ok() && !*found, "a key outlives a reset");
  context.check(store->barrier(in(20)).ok(), "the store's barrier");
  if (context.rank != 0) {
    const auto alone = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
    context.check(absl::IsDeadlineExceeded(store->barrier(alone)), "a barrier without rank 0");
  }
  store->abort();
  context.check(absl::IsAborted(store->destGet(0, "never", in(20)).status()), "a wait after abort()");
  context.check(context.world().barrier({}).ok(), "barrier");
}
const RankRole kHandOver("hand over", handOver);

/// What rank 0 has in shared memory, rank 1 sees in place: a later change shows through.
void inPlace(RankContext& context) {
  const auto store = openStore(context);
  ThreadGroup& world = context.world();
  at::Tensor value = at::zeros({1 << 20});
  if (context.rank == 0) context.check(store->srcSet("x", value, 1).ok(), "srcSet");
  absl::StatusOr<at::Tensor> view;
  if (context.rank == 1) view = store->destGet(0, "x", in(20));
  context.check(world.barrier({}).ok(), "barrier");
  if (context.rank == 0) value.fill_(7);
  context.check(world.barrier({}).ok(), "barrier");
  if (context.rank == 1) {
    context.check(view.ok() && view->eq(7).all().item<bool>(), "the tensor was copied");
    context.check(store->destFinishGet(0, "x").ok(), "destFinishGet");
  } else {
    context.check(store->srcWaitUntilGetFinished("x", in(20)).ok(), "srcWaitUntilGetFinished");
  }
}
const RankRole kInPlace("in place", inPlace);

/// A source that changes its tensor after the wait changes nothing that a reader has still to read.
void reused(RankContext& context) {
  const auto store = openStore(context);
  at::Tensor value = at::zeros({1 << 18});
  for (int round = 1; round <= 50; ++round) {
    if (context.rank == 0) {
      value.fill_(round);
      context.check(store->srcSet("x", value, context.size - 1).ok(), "srcSet");
      context.check(store->srcWaitUntilGetFinished("x", in(20)).ok(), "srcWaitUntilGetFinished");
    } else {
      const auto view = store->destGet(0, "x", in(20));
      context.check(view.ok() && view->eq(round).all().item<bool>(), absl::StrCat("not the values of round ", round));
      context.check(store->destFinishGet(0, "x").ok(), "destFinishGet");
    }
  }
}
const RankRole kReused("reused", reused);

/// An uninitialised tensor of one session shows nothing of another one's, nor does a result that is grown in place.
void sessions(RankContext& context) {
  constexpr std::int64_t kCount = 50000;
  for (int i = 0; i < 20; ++i) {
    const TensorOwnerScope secret(7);
    at::full({kCount}, 42.0F);
  }
  for (int i = 0; i < 20; ++i) {
    const TensorOwnerScope other(8);
    const at::Tensor fresh = at::empty({kCount});
    context.check(sharedHeap()->locate(fresh.const_data_ptr(), 1).has_value(), "a tensor is not in shared memory");
    context.check(fresh.ne(42).all().item<bool>(), "another session's values show");
    at::Tensor grown = at::empty({0});
    grown.resize_({kCount});
    context.check(grown.ne(42).all().item<bool>(), "another session's values show in a resized tensor");
  }
}
const RankRole kSessions("sessions", sessions);

/// Every key is another one. Nothing grows.
void manyKeys(RankContext& context) {
  const auto store = openStore(context);
  const at::Tensor value = at::ones({30000});
  Footprint before;
  for (int i = 0; i < 12000; ++i) {
    const std::string key = absl::StrCat("a key that is long enough to need memory of its own ", i);
    if (i == 2000) before = Footprint::now();
    if (context.rank == 0) {
      if (!store->srcSet(key, value, 1).ok() || !store->srcWaitUntilGetFinished(key, in(20)).ok()) {
        return context.check(false, absl::StrCat("key ", i));
      }
    } else if (!store->destGet(0, key, in(20)).ok() || !store->destFinishGet(0, key).ok()) {
      return context.check(false, absl::StrCat("reading key ", i));
    }
  }
  const std::string growth = Footprint::now().growthSince(before);
  context.check(growth.empty(), growth);
}
const RankRole kManyKeys("many keys", manyKeys);

/// Rank 0 is the source, 1 and 2 are readers; the argument says who dies in which step. The waits of the others end
/// within a second, with an error that names the dead.
void killedInStep(RankContext& context) {
  const auto store = openStore(context);
  const std::string& step = context.argument;
  const at::Tensor value = at::arange(100000.0);
  context.check(store->barrier(in(20)).ok(), "barrier");
  const auto start = std::chrono::steady_clock::now();
  const auto names = [&](const absl::Status& status, int rank) {
    context.check(absl::IsUnavailable(status) && absl::StrContains(status.message(), absl::StrCat("rank ", rank)),
                  status.ToString());
  };
  if (context.rank == 0) {
    if (step == "SrcSet") ::raise(SIGKILL);
    context.check(store->srcSet("x", value, 2).ok(), "srcSet");
    if (step == "SrcWait") ::raise(SIGKILL);
    names(store->srcWaitUntilGetFinished("x", in(20)), 1);
  } else {
    if (step == "DestGet" && context.rank == 1) ::raise(SIGKILL);
    auto view = store->destGet(0, "x", in(20));
    if (step == "SrcSet" || (step == "SrcWait" && !view.ok())) {  // it may die before this rank comes
      names(view.status(), 0);
    } else {
      context.check(view.ok() && at::equal(*view, value), absl::StrCat("destGet: ", view.status().ToString()));
      if (step == "DestFinishGet" && context.rank == 1) ::raise(SIGKILL);
      context.check(store->destFinishGet(0, "x").ok(), "destFinishGet");
      if (step == "SrcWait") names(store->destGet(0, "next", in(20)).status(), 0);
    }
  }
  context.check(std::chrono::steady_clock::now() - start < std::chrono::seconds(1), "it took long");
  // The survivors go on with a new store.
  const Rank victim = absl::StartsWith(step, "Src") ? 0 : 1;
  std::vector<Rank> left = context.all();
  std::erase(left, victim);
  const auto rebuilt = openStore(context, left);
  if (context.rank == left[0]) {
    context.check(rebuilt->srcSet("x", value, 1).ok(), "srcSet of a new store");
    context.check(rebuilt->srcWaitUntilGetFinished("x", in(20)).ok(), "srcWaitUntilGetFinished of a new store");
  } else {
    auto copy = rebuilt->destGetAndToDevice(left[0], "x", at::kCPU, in(20));
    context.check(copy.ok() && at::equal(*copy, value), "destGetAndToDevice of a new store");
  }
  context.check(rebuilt->barrier(in(20)).ok(), "the new store's barrier");
}
const RankRole kKilledInStep("killed in step", killedInStep);

}  // namespace

TEST_CASE("tensors are handed over by key", "[store]") {
  for (const int size : {2, 4}) expectRanks(Mode::kThreads, size, "hand over");
  expectRanks(Mode::kProcesses, 3, "hand over");
  expectRanks(Mode::kProcesses, 3, "hand over", "shared");
  for (const char* memory : {"", "shared"}) expectRanks(Mode::kMixed, 4, "hand over", memory);
}

TEST_CASE("a tensor in shared memory crosses without a copy", "[store]") {
  expectRanks(Mode::kThreads, 2, "in place");
  expectRanks(Mode::kProcesses, 2, "in place", "shared");
}

TEST_CASE("a tensor may change once all have read it", "[store]") {
  expectRanks(Mode::kThreads, 4, "reused");
  for (const char* memory : {"", "shared"}) expectRanks(Mode::kProcesses, 3, "reused", memory);
}

TEST_CASE("memory passes between sessions zeroed", "[store]") {
  expectRanks(Mode::kProcesses, 1, "sessions", "shared");
}

TEST_CASE("12,000 keys leave nothing behind", "[store]") {
  expectRanks(Mode::kProcesses, 2, "many keys");
  expectRanks(Mode::kProcesses, 2, "many keys", "shared");
}

TEST_CASE("COMM-1: a rank killed in a step of the store ends the others' waits", "[store]") {
  for (const char* step : {"SrcSet", "DestGet", "DestFinishGet", "SrcWait"}) {
    const std::size_t victim = absl::StartsWith(step, "Src") ? 0 : 1;
    const auto outcomes = runRanks(Mode::kProcesses, 3, "killed in step", step);
    for (std::size_t r = 0; r < outcomes.size(); ++r) {
      INFO(step << ", rank " << r << ": " << outcomes[r].failures);
      CHECK(outcomes[r].status == (r == victim ? SIGKILL : 0));
      CHECK(outcomes[r].failures.empty());
    }
  }
}

}  // namespace dtorch::testing
