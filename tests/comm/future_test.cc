// One suite for futures of this process and of another one: what holds for one, holds for the other.
#include <ATen/ATen.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "comm/future/tensor_future.h"
#include "tests/catch.h"
#include "tests/comm/footprint.h"
#include "tests/comm/ranks.h"

namespace dtorch::testing {
namespace {

TensorFuture::Deadline in(std::chrono::milliseconds time) { return std::chrono::steady_clock::now() + time; }
constexpr std::chrono::seconds kLong{20};

std::string newFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "dtorch-future-XXXXXX").string();
  return ::mkdtemp(pattern.data());
}

/// Makes promises, and futures of them as a consumer would.
class Maker {
 public:
  virtual ~Maker() = default;
  virtual TensorPromise promise() = 0;
  virtual TensorFuture future(const TensorPromise& promise) = 0;
};

class MemoryMaker final : public Maker {
 public:
  TensorPromise promise() override { return {}; }
  TensorFuture future(const TensorPromise& promise) override { return promise.future(); }
};

/// Over the socket, though both ends are in this process.
class FileMaker final : public Maker {
 public:
  FileMaker()
      : server_(*ValueServer::create(folder_ + "/values")), client_(*ValueClient::connect(folder_ + "/values")) {}
  ~FileMaker() override {
    client_.reset();
    server_.reset();
    std::filesystem::remove_all(folder_);
  }
  TensorPromise promise() override { return TensorPromise(server_); }
  TensorFuture future(const TensorPromise& promise) override {
    return TensorFuture::fetch(*client_, promise.ticket().id);
  }

 private:
  const std::string folder_ = newFolder();
  std::shared_ptr<ValueServer> server_;
  std::unique_ptr<ValueClient> client_;
};

/// Runs `test` for both.
void forBoth(const std::function<void(Maker&)>& test) {
  SECTION("memory") {
    MemoryMaker maker;
    test(maker);
  }
  SECTION("file") {
    FileMaker maker;
    test(maker);
  }
}

bool sameBytes(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         (a.numel() == 0 ||
          std::memcmp(a.contiguous().const_data_ptr(), b.contiguous().const_data_ptr(), a.nbytes()) == 0);
}

/// Starts at once and destroys itself at its end.
struct Detached {
  struct promise_type {
    Detached get_return_object() { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { std::terminate(); }
  };
};

Detached storeWhenReady(TensorFuture future, std::atomic<int>& done, TensorFuture::Result& result) {
  result = co_await future;
  done = 1;
  done.notify_all();
}

}  // namespace

TEST_CASE("values of all dtypes, shapes and strides arrive as they were", "[future]") {
  forBoth([](Maker& maker) {
    std::vector<at::Tensor> values = {at::tensor(2.5),
                                      at::empty({4, 0, 2}),
                                      at::arange(200000, at::kDouble).reshape({400, 500}).t(),
                                      at::arange(60000, at::kInt).reshape({200, 300}).slice(1, 5, 290, 3),
                                      at::ones({3}).expand({70000, 3}),
                                      at::complex(at::arange(5, at::kDouble), at::ones({5}, at::kDouble)).conj(),
                                      at::rand({3, 1 << 20})};
    for (const auto type : {at::kBool,
                            at::kByte,
                            at::kChar,
                            at::kUInt16,
                            at::kShort,
                            at::kUInt32,
                            at::kInt,
                            at::kUInt64,
                            at::kLong,
                            at::kHalf,
                            at::kBFloat16,
                            at::kFloat,
                            at::kDouble,
                            at::kComplexHalf,
                            at::kComplexFloat,
                            at::kComplexDouble,
                            at::kFloat8_e4m3fn,
                            at::kFloat8_e5m2,
                            at::kFloat8_e4m3fnuz,
                            at::kFloat8_e5m2fnuz}) {
      values.push_back(at::arange(12, at::kLong).remainder(3).to(type).reshape({3, 4}));
      values.push_back(at::arange(70000, at::kLong).remainder(3).to(type));
    }
    for (const at::Tensor& value : values) {
      TensorPromise promise = maker.promise();
      const TensorFuture future = maker.future(promise);
      REQUIRE(promise.set(value).ok());
      const auto got = future.get(in(kLong));
      REQUIRE(got.ok());
      CHECK(got->is_contiguous());
      CHECK(sameBytes(*got, value.resolve_conj()));
    }
  });
}

TEST_CASE("a value is a snapshot", "[future]") {
  forBoth([](Maker& maker) {
    for (const std::int64_t count : {10, 100000}) {
      TensorPromise promise = maker.promise();
      at::Tensor value = at::ones({count});
      REQUIRE(promise.set(value).ok());
      value.zero_();
      value.reset();
      CHECK(maker.future(promise).get(in(kLong))->eq(1).all().item<bool>());
    }
  });
}

TEST_CASE("a promise is resolved once, with a value or an error", "[future]") {
  forBoth([](Maker& maker) {
    TensorPromise promise = maker.promise();
    const TensorFuture future = maker.future(promise);
    CHECK_FALSE(future.isReady());
    CHECK_FALSE(future.wait(in(std::chrono::milliseconds(5))));
    CHECK(absl::IsDeadlineExceeded(future.get(in(std::chrono::milliseconds(5))).status()));
    REQUIRE(promise.set(at::ones({2})).ok());
    CHECK(absl::IsFailedPrecondition(promise.set(at::zeros({2}))));
    CHECK(absl::IsFailedPrecondition(promise.set(absl::InternalError("late"))));
    CHECK(future.get(in(kLong))->eq(1).all().item<bool>());
    CHECK(future.isReady());
    CHECK(future.get(in(kLong)).ok());  // and it stays

    TensorPromise failing = maker.promise();
    const TensorFuture failed = maker.future(failing);
    REQUIRE(failing.set(absl::InternalError("no kernel")).ok());
    CHECK(failed.get(in(kLong)).status() == absl::InternalError("no kernel"));

    TensorPromise invalid = maker.promise();
    CHECK(absl::IsInvalidArgument(invalid.set(at::Tensor())));
    CHECK(absl::IsInvalidArgument(maker.future(invalid).get(in(kLong)).status()));
  });
}

TEST_CASE("a dropped promise fails its futures", "[future]") {
  forBoth([](Maker& maker) {
    auto promise = std::make_unique<TensorPromise>(maker.promise());
    const TensorFuture future = maker.future(*promise);
    CHECK_FALSE(future.wait(in(std::chrono::milliseconds(20))));
    promise.reset();
    CHECK(absl::IsAborted(future.get(in(kLong)).status()));
  });
}

TEST_CASE("callbacks run once, also those that come late, and coroutines go on", "[future]") {
  forBoth([](Maker& maker) {
    TensorPromise promise = maker.promise();
    const TensorFuture future = maker.future(promise);
    std::atomic<int> calls = 0;
    const auto count = [&calls](const TensorFuture::Result& value) { calls += value.ok() ? 1 : 100; };
    future.onReady(count);
    std::atomic<int> done = 0;
    TensorFuture::Result awaited = absl::UnknownError("not there");
    storeWhenReady(future, done, awaited);
    CHECK(done == 0);
    REQUIRE(promise.set(at::full({3}, 4.0)).ok());
    done.wait(0);
    REQUIRE(awaited.ok());
    CHECK(awaited->eq(4).all().item<bool>());
    CHECK(calls == 1);
    future.onReady(count);
    CHECK(calls == 2);
    std::atomic<int> again = 0;
    storeWhenReady(future, again, awaited);
    CHECK(again == 1);
  });
}

TEST_CASE("many wait for one value", "[future]") {
  forBoth([](Maker& maker) {
    TensorPromise promise = maker.promise();
    std::atomic<int> right = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 32; ++i) {
      threads.emplace_back([&, future = maker.future(promise)] {
        const auto value = future.get(in(kLong));
        if (value.ok() && value->sum().item<double>() == 50000) ++right;
      });
    }
    REQUIRE(promise.set(at::ones({50000})).ok());
    for (std::thread& thread : threads) thread.join();
    CHECK(right == 32);
  });
}

namespace {

/// Rank 0 computes, rank 1 waits, in processes of their own; the argument is a folder. The last value never comes: its
/// producer is killed.
void producerDies(RankContext& context) {
  const std::string path = absl::StrCat(context.argument, "/values");
  const at::Tensor value = at::arange(300000.0);
  std::shared_ptr<ValueServer> server;
  std::unique_ptr<TensorPromise> first;
  std::unique_ptr<TensorPromise> second;
  at::Tensor ids = at::zeros({2}, at::kLong);
  if (context.rank == 0) {
    server = *ValueServer::create(path);
    first = std::make_unique<TensorPromise>(server);
    second = std::make_unique<TensorPromise>(server);
    ids = at::tensor({static_cast<std::int64_t>(first->ticket().id), static_cast<std::int64_t>(second->ticket().id)});
  }
  ids = *context.world().broadcast(ids, 0, {});
  if (context.rank == 0) {
    context.check(first->set(value).ok(), "set");
    context.check(context.world().barrier({}).ok(), "barrier");
    ::raise(SIGKILL);
  }
  auto client = *ValueClient::connect(path);
  const TensorFuture got = TensorFuture::fetch(*client, static_cast<std::uint64_t>(ids[0].item<std::int64_t>()));
  const TensorFuture never = TensorFuture::fetch(*client, static_cast<std::uint64_t>(ids[1].item<std::int64_t>()));
  const auto there = got.get(in(kLong));
  context.check(there.ok() && at::equal(*there, value), "the value");
  const auto start = std::chrono::steady_clock::now();
  context.world().barrier({}).IgnoreError();  // the producer may be dead already
  const absl::Status status = never.get(in(kLong)).status();
  context.check(std::chrono::steady_clock::now() - start < std::chrono::seconds(1), "the death was seen late");
  context.check(absl::IsUnavailable(status) && absl::StrContains(status.message(), "process"), status.ToString());
  context.check(at::equal(*there, value), "a value that is here ends with its producer");
}
const RankRole kProducerDies("producer dies", producerDies);

}  // namespace

TEST_CASE("a future fails within a second of its producer's death", "[future]") {
  const std::string folder = newFolder();
  const auto outcomes = runRanks(Mode::kProcesses, 2, "producer dies", folder);
  CHECK(outcomes[0].status == SIGKILL);
  CHECK(outcomes[0].failures == "");
  CHECK(outcomes[1].status == 0);
  CHECK(outcomes[1].failures == "");
  std::filesystem::remove_all(folder);
}

TEST_CASE("10,000 values leave nothing behind", "[future]") {
  forBoth([](Maker& maker) {
    const at::Tensor small = at::ones({10});
    const at::Tensor large = at::ones({10000});
    const auto once = [&](int i) {
      TensorPromise promise = maker.promise();
      const TensorFuture future = maker.future(promise);
      return promise.set(i % 10 == 0 ? large : small).ok() && future.get(in(kLong)).ok();
    };
    REQUIRE(once(0));
    int right = 0;
    for (int i = 0; i < 2000; ++i) right += once(i) ? 1 : 0;
    const Footprint before = Footprint::now();
    for (int i = 0; i < 10000; ++i) right += once(i) ? 1 : 0;
    CHECK(right == 12000);
    // The server's thread may hold an answer that has arrived for a moment longer, here as before.
    for (int i = 0; i < 1000 && !Footprint::now().growthSince(before).empty(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    CHECK(Footprint::now().growthSince(before) == "");
  });
}

}  // namespace dtorch::testing
