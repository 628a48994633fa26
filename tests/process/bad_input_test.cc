// What a client does wrong costs it a status that says what to do; the daemon, its workers and other sessions go on.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "client/cpp/operator_error.h"
#include "client/cpp/operators.h"
#include "client/cpp/session.h"
#include "tests/catch.h"
#include "tests/process/daemon_fixture.h"

namespace dtorch {
namespace {

constexpr auto kDeadline = std::chrono::seconds(20);
using Sizes = std::vector<std::int64_t>;

// The same workers still compute: asked after each fault.
void checkAlive(Session& session) {
  const auto sum = session.call("aten::sum", {session.call("aten::ones", {Sizes{4}})}).get().wait(kDeadline);
  REQUIRE(sum.ok());
  REQUIRE(*sum->item() == 4.0);
}

absl::Status errorOf(const Tensor& tensor) { return tensor.get().wait(kDeadline).status(); }

bool mentions(const absl::Status& status, const std::string& text) {
  return std::string(status.message()).find(text) != std::string::npos;
}

TEST_CASE("wrong calls get a status, and everything goes on") {
  DaemonFixture daemon;
  const auto session = daemon.connect();
  const std::vector<float> four = {1, 2, 3, 4};
  const Tensor x = session->put(HostView::of(four, {2, 2}), session->mesh());
  const Tensor wide = session->put(HostView::of(four, {1, 4}), session->mesh());

  SECTION("unknown operator, with what exists") {
    const absl::Status error = errorOf(session->call("aten::no_such_operator", {x}));
    CHECK(absl::IsNotFound(error));
    CHECK(mentions(error, "aten::no_such_operator"));
    CHECK(mentions(error, "bad_input_test.cc"));
    CHECK(mentions(errorOf(session->call("aten::add", {x, x})), "aten::add.Tensor"));
  }
  SECTION("arity, names and types") {
    CHECK(absl::IsInvalidArgument(errorOf(session->call("aten::mm", {x}))));
    CHECK(absl::IsInvalidArgument(errorOf(session->call("aten::mm", {x, x, x}))));
    CHECK(mentions(errorOf(session->call("aten::mm", {x, "text"})), "mat2"));
    CHECK(mentions(errorOf(session->call("aten::sum", {x}, {.named = {{"nonsense", 1}}})), "nonsense"));
    CHECK(absl::IsInvalidArgument(errorOf(session->callMany("aten::max.dim", {x, 0}, 1)[0])));
  }
  SECTION("shapes, and operators that may not be called") {
    const absl::Status error = errorOf(session->call("aten::mm", {x, wide}));
    CHECK(absl::IsInvalidArgument(error));
    CHECK(mentions(error, "aten::mm"));
    CHECK(absl::IsPermissionDenied(errorOf(session->call("aten::from_file", {"/etc/passwd"}))));
    CHECK(absl::IsPermissionDenied(errorOf(session->call("aten::resize_", {x, Sizes{2}}))));
  }
  SECTION("the first cause reaches what depends on it") {
    const Tensor bad = session->call("aten::mm", {x, wide});
    Tensor later = bad;
    for (int i = 0; i < 10; ++i) later = session->call("aten::add.Tensor", {later, x});
    CHECK(mentions(errorOf(later), "aten::mm"));
  }
  SECTION("a kernel that fails on the worker") {
    const std::vector<std::int64_t> index = {7};
    const Tensor far = session->put(HostView::of(index, {1, 1}), session->mesh());
    const Tensor bad = session->call("aten::gather", {x, 0, far});
    const absl::Status error = errorOf(session->call("aten::add.Tensor", {bad, bad}));
    CHECK(absl::IsInvalidArgument(error));
    CHECK(mentions(error, "aten::gather"));
    CHECK(mentions(error, "bad_input_test.cc"));
    CHECK(daemon.status().operators_failed() >= 1);
  }
  SECTION("sizes that overflow or do not fit") {
    for (const Sizes& sizes :
         {Sizes{2, 2, 1, std::int64_t{1} << 61}, Sizes(64, 2), Sizes{std::int64_t{1} << 32, std::int64_t{1} << 32},
          Sizes{std::int64_t{1} << 62, 4}, Sizes{-1, 3}, Sizes{std::int64_t{1} << 40}}) {
      const absl::Status error = errorOf(session->call("aten::zeros", {sizes}));
      CHECK((absl::IsInvalidArgument(error) || absl::IsResourceExhausted(error)));
    }
    const auto empty = session->call("aten::zeros", {Sizes{0, 5}}).get().wait(kDeadline);
    REQUIRE(empty.ok());
    CHECK(empty->numel() == 0);
  }
  SECTION("ranks, meshes and placements that do not exist") {
    CHECK_FALSE(session->mesh({0, 7}).ok());
    CHECK(absl::IsInvalidArgument(
        errorOf(session->put(HostView::of(four, {2, 2}), session->mesh(), {Placement::shard(5)}))));
    CHECK(absl::IsInvalidArgument(errorOf(x.redistribute({Placement::shard(2)}))));
    CHECK(absl::IsInvalidArgument(errorOf(x.redistribute({Placement::replicate(), Placement::replicate()}))));
    CHECK_FALSE(x.getLocal(9).wait(kDeadline).ok());
  }
  SECTION("parts that are no chunk layout are refused") {
    const std::vector<float> parts = {1, 2, 3, 4};
    const std::vector<float> one = {1};
    const std::vector<HostView> uneven = {HostView::of(one, {1}), HostView::of(parts, {4})};
    CHECK(absl::IsInvalidArgument(errorOf(session->putShards(uneven, {5}, session->mesh(), {Placement::shard(0)}))));
  }
  SECTION("what was refused in place cannot be read as if nothing were") {
    const Tensor sum = session->put(HostView::of(four, {2, 2}), session->mesh(), {Placement::partial()});
    session->call("aten::add_.Scalar", {sum, 1});
    CHECK(mentions(errorOf(sum), "aten::add_.Scalar"));
    CHECK(absl::IsUnimplemented(errorOf(session->call("aten::t_", {wide}))));
    CHECK(mentions(errorOf(wide), "aten::t_"));
    session->call("aten::add_.Scalar", {x, "text"});
    CHECK(mentions(errorOf(x), "aten::add_.Scalar"));
  }
  SECTION("a redistribution is a tensor of its own, to the same placement too") {
    const Tensor same = x.redistribute({Placement::replicate()});
    session->call("aten::mul_.Scalar", {same, 10});
    const auto value = x.get().wait(kDeadline);
    REQUIRE(value.ok());
    CHECK((*value->values<float>())[0] == 1.0F);
  }
  SECTION("a call too large to send") {
    CHECK(absl::IsInvalidArgument(errorOf(session->call("aten::add.Tensor", {x, std::string(80 << 20, 'x')}))));
  }
  SECTION("calls that are large, all at once, and more of them than the daemon will remember") {
    for (int i = 0; i < 24; ++i) {
      const absl::Status error = errorOf(session->call("aten::add.Tensor", {x, std::string(15 << 20, 'a' + i)}));
      CHECK(absl::IsInvalidArgument(error));
    }
    std::vector<Tensor> refused;
    for (int i = 0; i < 8; ++i)
      refused.push_back(session->call("aten::add.Tensor", {x, std::string(15 << 20, 'A' + i)}));
    for (const Tensor& tensor : refused) CHECK(absl::IsInvalidArgument(errorOf(tensor)));
  }
  SECTION("a factory takes no memory of the daemon's") {
    const std::int64_t before = daemon.status().resident_bytes();
    const Tensor zeros =
        session->call("aten::zeros", {Sizes{1 << 26}}, {.mesh = session->mesh(), .placements = {Placement::shard(0)}});
    CHECK(zeros.describe().wait(kDeadline).ok());
    CHECK(daemon.status().resident_bytes() < before + (64 << 20));
    CHECK(absl::IsResourceExhausted(errorOf(session->call("aten::zeros", {Sizes{std::int64_t{1} << 38}}))));
  }
  SECTION("names that are no UTF-8") { CHECK_FALSE(errorOf(session->call("aten::\xff\xfe", {x})).ok()); }

  checkAlive(*session);
  checkAlive(*daemon.connect());
}

TEST_CASE("arguments that LibTorch's Meta kernels do not survive are refused") {
  DaemonFixture daemon;
  const auto session = daemon.connect();
  constexpr std::int64_t kHuge = std::int64_t{1} << 31;
  constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
  const Tensor four = session->call("aten::ones", {Sizes{1, 4, 2, 2}});
  const auto refused = [&](const Tensor& tensor) {
    const absl::Status error = errorOf(tensor);
    INFO(error);
    CHECK((absl::IsInvalidArgument(error) || absl::IsResourceExhausted(error) || absl::IsUnimplemented(error)));
  };
  refused(session->call("aten::native_channel_shuffle", {four, 0}));  // divides by it
  checkAlive(*session);
  refused(session->call("aten::_stack", {std::vector<Tensor>()}));                 // reads past the end
  refused(session->callMany("aten::tensor_split.sections", {four, kHuge}, 2)[0]);  // makes as many results
  refused(session->call("aten::empty_strided", {Sizes{2, 2}, Sizes{kLeast, 1}}));  // becomes a symbol
  refused(session->call("aten::as_strided", {four, Sizes{2}, Sizes{kLeast + 1}}));
  checkAlive(*session);
  CHECK(daemon.status().health() == v1::HEALTH_HEALTHY);
}

TEST_CASE("a Meta kernel that takes its time holds up its session only") {
  DaemonFixture daemon;
  const auto session = daemon.connect();
  const auto other = daemon.connect();
  checkAlive(*other);  // what it calls below is planned already
  const Tensor one = session->call("aten::ones", {Sizes{1}});
  std::vector<Tensor> slow;
  for (int i = 0; i < 4; ++i) {
    const Tensor wide = session->call("aten::expand", {one, Sizes{6'000'000 + i}});
    slow.push_back(session->callMany("aten::unbind.int", {wide, 0}, 1)[0]);
  }
  const Future<HostTensor> last = slow.back().get();
  int rounds = 0;
  while (!last.poll()) {
    const auto asked = std::chrono::steady_clock::now();
    CHECK(daemon.status().health() == v1::HEALTH_HEALTHY);
    checkAlive(*other);
    CHECK(std::chrono::steady_clock::now() - asked < std::chrono::seconds(1));
    ++rounds;
  }
  CHECK(rounds > 10);
  for (const Tensor& tensor : slow) CHECK(absl::IsInvalidArgument(errorOf(tensor)));
}

TEST_CASE("what is a copy of the whole tensor is a copy on every rank") {
  DaemonFixture daemon;
  const auto session = daemon.connect();
  const std::vector<float> values = {0, 1, 2, 3, 4, 5};
  const Tensor x = session->put(HostView::of(values, {3, 2}), session->mesh(), {Placement::shard(0)});
  // The last rank has one row: transposed, that part is contiguous already.
  session->call("aten::mul_.Scalar", {session->call("aten::contiguous", {session->call("aten::t", {x})}), 10});
  const auto value = x.get().wait(kDeadline);
  REQUIRE(value.ok());
  const auto kept = *value->values<float>();
  CHECK(std::equal(kept.begin(), kept.end(), values.begin(), values.end()));
}

TEST_CASE("the first cause is named, whichever rank says first that it lacks a value") {
  DaemonFixture daemon({.workers = 4, .threads = false, .flags = {}});
  const auto session = daemon.connect();
  const std::vector<std::int64_t> ones(6, 1);
  for (int i = 0; i < 20; ++i) {
    // Only the first two ranks have a row on which the kernel can fail.
    const Tensor x = session->put(HostView::of(ones, {2, 3}), session->mesh(), {Placement::shard(0)});
    const absl::Status error = errorOf(session->call("aten::_softmax", {x, 1, false}));
    const auto cause = operatorError(error);
    REQUIRE(cause.has_value());
    CHECK(cause->operatorName == "aten::_softmax");
    CHECK(cause->rank.value_or(-1) <= 1);
    CHECK(cause->site.find("bad_input_test.cc") != std::string::npos);
    const auto reported = operatorError(session->synchronize().wait(kDeadline));
    if (reported) CHECK(reported->operatorName == "aten::_softmax");
  }
}

TEST_CASE("parts that shall be replicas of each other are") {
  DaemonFixture daemon;
  const auto session = daemon.connect();
  const std::vector<float> one = {1, 2};
  const std::vector<float> other = {1, 3};
  const std::vector<HostView> same = {HostView::of(one, {2}), HostView::of(one, {2})};
  const std::vector<HostView> different = {HostView::of(one, {2}), HostView::of(other, {2})};
  CHECK(session->putShards(same, {2}, session->mesh(), {Placement::replicate()}).get().wait(kDeadline).ok());
  CHECK(
      absl::IsInvalidArgument(errorOf(session->putShards(different, {2}, session->mesh(), {Placement::replicate()}))));
  CHECK(session->putShards(different, {2}, session->mesh(), {Placement::partial()}).get().wait(kDeadline).ok());
}

TEST_CASE("what one session left in memory no other one sees") {
  DaemonFixture daemon;
  constexpr std::int64_t kCount = 1 << 18;  // shared memory; the small ones are malloc's
  for (const std::int64_t count : {std::int64_t{64}, kCount}) {
    {
      const auto secret = daemon.connect();
      for (int i = 0; i < 8; ++i) secret->call("aten::full", {Sizes{count}, 42.0});
      CHECK(secret->synchronize().wait(kDeadline).ok());
    }
    const auto session = daemon.connect();
    for (const char* name : {"aten::empty.memory_format", "aten::empty_strided"}) {
      const Tensor x = name == std::string("aten::empty_strided") ? session->call(name, {Sizes{count}, Sizes{1}})
                                                                  : session->call(name, {Sizes{count}});
      const auto value = x.get().wait(kDeadline);
      REQUIRE(value.ok());
      const auto values = *value->values<float>();
      CHECK(std::all_of(values.begin(), values.end(), [](float v) { return v == 0; }));
    }
    const auto refused = errorOf(session->call("aten::_reshape_alias_copy",
                                               {session->call("aten::ones", {Sizes{4}}), Sizes{1 << 16}, Sizes{1}}));
    CHECK(absl::IsPermissionDenied(refused));
  }
}

TEST_CASE("a kernel that wants more memory than its worker may have fails alone") {
  DaemonFixture daemon({.workers = 2, .threads = false, .flags = {"--workers.memory", "64MiB"}});
  const auto session = daemon.connect();
  const Tensor small = session->call("aten::ones", {Sizes{1}});
  const Tensor wide = session->call("aten::expand", {small, Sizes{1 << 25}});
  const absl::Status error = errorOf(session->call("aten::clone", {wide}));
  CHECK(absl::IsResourceExhausted(error));
  CHECK(mentions(error, "limit"));
  for (int i = 0; i < 20; ++i) {
    const Tensor large = session->call("aten::ones", {Sizes{8 << 20}});  // 32 MiB each: what is freed can be had again
    CHECK(*session->call("aten::sum", {large}).get().wait(kDeadline)->item() == 8 << 20);
  }
  checkAlive(*session);
}

TEST_CASE("lists of ints are lists of ints, however they are written") {
  DaemonFixture daemon;
  const auto session = daemon.connect();
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const Tensor x = session->put(HostView::of(values, {3, 2}), session->mesh(), {Placement::shard(0)});
  const Value one(std::int64_t{1});
  for (const Value& dims : {Value(std::vector<Value>{one}), Value(Sizes{1}), one}) {
    const auto sum = session->call("aten::sum.dim_IntList", {x, dims}).get().wait(kDeadline);
    REQUIRE(sum.ok());
    CHECK((*sum->values<float>())[2] == 11.0F);
  }
}

TEST_CASE("an in-place operator works on a view that is not contiguous") {
  DaemonFixture daemon;
  const auto session = daemon.connect();
  const std::vector<float> values = {1, std::numeric_limits<float>::quiet_NaN(), 3, 4};
  const Tensor x = session->put(HostView::of(values, {2, 2}), session->mesh(), {});
  const Tensor column = session->call("aten::select.int", {x, 1, 1});
  session->call("aten::nan_to_num_", {column, 7.0});
  const auto value = x.get().wait(kDeadline);
  REQUIRE(value.ok());
  CHECK((*value->values<float>())[1] == 7.0F);
}

TEST_CASE("memory that was not written as the program thinks is lost, through every view of it") {
  DaemonFixture daemon;
  const auto session = daemon.connect();
  const std::vector<std::int64_t> values = {8, 8, 8, 8};
  const std::vector<std::int64_t> divisors = {2, 2, 2, 0};  // only the last rank cannot
  const auto sharded = [&](const std::vector<std::int64_t>& host) {
    return session->put(HostView::of(host, {4}), session->mesh(), {Placement::shard(0)});
  };
  const Tensor x = sharded(values);
  const Tensor other = sharded(values);
  const Tensor before = session->call("aten::unsqueeze", {x, 1});
  const Tensor copy = session->call("aten::clone", {x});
  session->call("aten::remainder_.Tensor", {x, sharded(divisors)});
  const Tensor after = session->call("aten::unsqueeze", {x, 1});
  // Those that were on their way when the rank failed, and those that are called when the daemon knows of it.
  for (int round = 0; round < 2; ++round) {
    for (const Tensor& tensor : {x, before, after, session->call("aten::add.Tensor", {before, 1}),
                                 session->call("aten::unsqueeze", {before, 0})}) {
      const absl::Status error = errorOf(tensor);
      CHECK(mentions(error, "aten::remainder_.Tensor"));
      REQUIRE(operatorError(error).has_value());
      CAPTURE(error, operatorError(error)->rank.value_or(-1));
      CHECK(operatorError(error)->rank == 1);
      // Rank 0 has divided its part: nobody may take that for the tensor's value.
      CHECK(mentions(tensor.getLocal(0).wait(kDeadline).status(), "aten::remainder_.Tensor"));
    }
  }
  for (const Tensor& whole : {copy, other}) {
    const auto value = whole.get().wait(kDeadline);
    REQUIRE(value.ok());
    CHECK(std::equal(values.begin(), values.end(), value->values<std::int64_t>()->begin()));
  }
  // What was refused before it reached a worker is lost in the same way.
  const Tensor view = session->call("aten::unsqueeze", {other, 1});
  session->call("aten::add_.Tensor", {other, x});
  CHECK(mentions(errorOf(view), "aten::remainder_.Tensor"));
  checkAlive(*session);
}

TEST_CASE("a Partial is added up in its own arithmetic, or its operator refused") {
  DaemonFixture daemon;
  const auto session = daemon.connect();
  const auto summands = [&](auto first, auto second) {
    const auto count = static_cast<std::int64_t>(first.size());
    const std::vector<HostView> parts = {HostView::of(first, {count}), HostView::of(second, {count})};
    return session->putShards(parts, {count}, session->mesh(), {Placement::partial()});
  };
  const Tensor halves = summands(std::vector<float>{0.5F, 0.6F, 0.7F}, std::vector<float>{0.5F, 0.6F, 0.8F});
  const Tensor bytes = summands(std::vector<std::uint8_t>{200, 100}, std::vector<std::uint8_t>{100, 200});
  for (const Tensor& tensor : {halves, bytes}) {
    const absl::Status error = errorOf(session->call("aten::sum", {tensor}, {.named = {{"dtype", DType::kInt64}}}));
    CHECK((absl::IsInvalidArgument(error) || absl::IsUnimplemented(error)));
  }
  CHECK_FALSE(errorOf(session->call("aten::mul.Scalar", {bytes, 0.5})).ok());
  CHECK(*session->call("aten::sum", {halves}).get().wait(kDeadline)->item() == Approx(3.7));
  const std::vector<std::uint8_t> wrapped = {44, 44};
  const auto value = bytes.get().wait(kDeadline);
  REQUIRE(value.ok());
  CHECK(std::equal(wrapped.begin(), wrapped.end(), value->values<std::uint8_t>()->begin()));
}

TEST_CASE("calls with thousands of tensors, and with a hundred thousand numbers") {
  DaemonFixture daemon;
  const auto session = daemon.connect();
  const std::vector<float> values = {1, 2};
  std::vector<Tensor> parts;
  for (int i = 0; i < 5000; ++i) parts.push_back(session->put(HostView::of(values, {2}), session->mesh()));
  const auto joined = session->call("aten::cat", {parts, 0}).get().wait(std::chrono::seconds(60));
  INFO(joined.status());
  REQUIRE(joined.ok());
  const auto row = *joined->values<float>();
  REQUIRE(row.size() == 10'000);
  CHECK(std::accumulate(row.begin(), row.end(), 0.0) == 15'000);
  const std::vector<std::int64_t> ones(100'000, 1);
  const absl::Status shape = session->call("aten::ones", {ones}).get().wait(std::chrono::seconds(60)).status();
  CAPTURE(std::string(shape.message()));
  CHECK((shape.ok() || absl::IsInvalidArgument(shape) || absl::IsResourceExhausted(shape)));
  checkAlive(*session);
}

// tensorflow/serving#1382, elasticdl#571
TEST_CASE("values of every size cross both ways") {
  DaemonFixture daemon;
  const auto session = daemon.connect();
  std::mt19937_64 random(17);
  for (const std::size_t bytes : {0UL, 1UL, 4194304UL - 16, 4194304UL, 4194305UL, 64UL << 20, 300UL << 20}) {
    std::vector<std::uint8_t> data(bytes);
    for (std::size_t i = 0; i < bytes; i += 997) data[i] = static_cast<std::uint8_t>(random());
    const Placement placement = bytes % 2 == 0 ? Placement::shard(0) : Placement::replicate();
    const Tensor tensor =
        session->put(HostView::of(data, {static_cast<std::int64_t>(bytes)}), session->mesh(), {placement});
    const auto back = tensor.get().wait(std::chrono::seconds(60));
    INFO(bytes << " bytes: " << back.status());
    REQUIRE(back.ok());
    const auto values = *back->values<std::uint8_t>();
    REQUIRE(std::equal(values.begin(), values.end(), data.begin(), data.end()));
  }
  checkAlive(*session);
}

TEST_CASE("scalars keep every bit") {
  DaemonFixture daemon;
  const auto session = daemon.connect();
  const auto scalar = [&](const Value& value, DType dtype) {
    return session->call("aten::full", {Sizes{1}, value}, {.named = {{"dtype", dtype}}}).get().wait(kDeadline);
  };
  CHECK((*scalar(std::int64_t{9007199254740993}, DType::kInt64)->values<std::int64_t>())[0] == 9007199254740993);
  CHECK((*scalar(std::numeric_limits<std::int64_t>::min(), DType::kInt64)->values<std::int64_t>())[0] ==
        std::numeric_limits<std::int64_t>::min());
  CHECK((*scalar(0.1, DType::kFloat64)->values<double>())[0] == 0.1);
  CHECK(std::signbit((*scalar(-0.0, DType::kFloat64)->values<double>())[0]));
  CHECK(std::isnan((*scalar(std::nan(""), DType::kFloat64)->values<double>())[0]));
  CHECK(std::isinf((*scalar(std::numeric_limits<double>::infinity(), DType::kFloat64)->values<double>())[0]));
}

// Resident bytes of the daemon and its workers together.
std::int64_t residentOf(const DaemonFixture& daemon) {
  const v1::StatusReply status = daemon.status();
  std::int64_t bytes = status.resident_bytes();
  for (const v1::WorkerStatus& worker : status.workers()) bytes += worker.resident_bytes();
  return bytes;
}

#if defined(__SANITIZE_ADDRESS__)
constexpr std::int64_t kAllowedGrowth = std::int64_t{1} << 30;  // three processes keep 256 MiB of freed memory each
#else
constexpr std::int64_t kAllowedGrowth = 64 << 20;
#endif

TEST_CASE("ever new scalars and shapes do not fill the daemon or its workers") {
  DaemonFixture daemon({.workers = 2, .flags = {"--heartbeat.interval", "100ms", "--heartbeat.silent_after", "10s"}});
  const auto session = daemon.connect();
  const std::vector<float> one = {1};
  const Tensor x = session->put(HostView::of(one, {1}), session->mesh());
  const bool shapes = GENERATE(false, true);
  INFO((shapes ? "shapes" : "scalars"));
  std::int64_t before = 0;
  for (std::int64_t i = 0; i < 120000; ++i) {
    const Tensor y = shapes ? session->call("aten::expand", {x, Sizes{1 + i}}, {.named = {{"implicit", false}}})
                            : session->call("aten::mul.Scalar", {x, 1.0 + static_cast<double>(i)});
    if (i % 40000 != 39999) continue;
    const auto value = y.get().wait(3 * kDeadline);  // of 40,000 operators that are all new
    REQUIRE(value.ok());
    if (!shapes) CHECK(*value->item() == 1.0 + static_cast<double>(i));
    if (shapes) CHECK(value->numel() == 1 + i);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // a heartbeat tells the workers' memory
    const std::int64_t resident = residentOf(daemon);
    if (before == 0) before = resident;
    CHECK(resident < before + kAllowedGrowth);
  }
  const v1::StatusReply after = daemon.status();
  for (const v1::WorkerStatus& worker : after.workers()) CHECK(worker.tensor_bytes() < (1 << 20));
  checkAlive(*session);
}

}  // namespace
}  // namespace dtorch
