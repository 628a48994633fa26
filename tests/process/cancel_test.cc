// Calls with a time limit, and calls that are cancelled: who is told, how soon, and what is left.
#include <grpcpp/create_channel.h>
#include <signal.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "client/cpp/operators.h"
#include "client/cpp/session.h"
#include "dtorch/v1/client.grpc.pb.h"
#include "proto/version.h"
#include "tests/catch.h"
#include "tests/process/daemon_fixture.h"

namespace dtorch {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;
constexpr auto kDeadline = seconds(60);

Tensor square(Session& session, const Mesh& mesh) {
  return session.call("aten::ones", {Sizes{900, 900}}, {.mesh = mesh});
}
/// Some seconds of work, in operators of some tens of milliseconds.
Tensor slow(Session& session, const Tensor& start, int operators = 300) {
  Tensor x = start;
  for (int i = 0; i < operators; ++i) x = session.call("aten::mm", {x, start});
  return x;
}

std::string message(const absl::Status& status) { return std::string(status.message()); }

bool isCancelled(const absl::Status& status) { return failureKind(status) == FailureKind::kCancelled; }

}  // namespace

TEST_CASE("what is cancelled ends at once, what has not begun is dropped, and all goes on") {
  DaemonFixture daemon({.flags = {"--heartbeat.interval", "100ms", "--heartbeat.silent_after", "10s"}});
  const auto session = daemon.connect();
  const auto other = daemon.connect();
  const Tensor start = square(*session, session->mesh());
  REQUIRE(session->synchronize().wait(kDeadline).ok());
  const Tensor kept = session->call("aten::mul.Tensor", {start, 2.0});
  REQUIRE(kept.get().wait(kDeadline).ok());
  const Tensor written = session->call("aten::zeros", {Sizes{2}});
  REQUIRE(written.get().wait(kDeadline).ok());
  {
    const Tensor end = slow(*session, start);
    session->call("aten::add_.Tensor", {written, 1.0});
    const Future<HostTensor> value = end.get();
    const Future<void> all = session->synchronize();
    std::this_thread::sleep_for(milliseconds(200));
    CHECK_FALSE(value.poll());
    const auto begin = Clock::now();
    REQUIRE(session->cancel().ok());
    CHECK(isCancelled(value.wait(kDeadline).status()));
    CHECK(isCancelled(all.wait(kDeadline)));
    CHECK(Clock::now() - begin < seconds(1));
    // What comes after the cancel is as ever, once what runs has ended: 300 operators would take many times as long.
    CHECK(sumOfOnes(*session).value_or(0) == 8);
    CHECK(Clock::now() - begin < seconds(3));
    CHECK(isCancelled(end.get().wait(kDeadline).status()));
    CHECK(isCancelled(add(end, end).get().wait(kDeadline).status()));
  }
  // It might have been written to, or not: nobody may take it for either.
  CHECK(isCancelled(written.get().wait(kDeadline).status()));
  CHECK(kept.get().wait(kDeadline).ok());
  CHECK(start.get().wait(kDeadline).ok());
  CHECK(session->synchronize().wait(kDeadline).ok());
  CHECK(sumOfOnes(*other).value_or(0) == 8);
  CHECK(daemon.status().health() == v1::HEALTH_HEALTHY);
  // Two squares and little else.
  const auto held = [&] { return daemon.status().workers(1).tensor_bytes(); };
  CHECK(eventually([&] { return held() < 3 * 900 * 900 * 4; }, seconds(5)));
  CHECK(eventually([&] { return daemon.status().operators_in_flight() == 0; }, seconds(5)));
}

TEST_CASE("a cancel reaches calls that wait on the stream, while a worker stands still") {
  DaemonFixture daemon({.flags = {"--executor.max_operators_in_flight", "1000"}});
  const auto session = daemon.connect();
  const std::vector<std::int64_t> zero = {0, 0, 0};
  const Tensor x = session->put(HostView::of(zero, {3}), session->mesh(), {Placement::shard(0)});
  const Tensor untouched = session->put(HostView::of(zero, {3}), session->mesh(), {Placement::shard(0)});
  REQUIRE(untouched.get().wait(kDeadline).ok());
  const auto stopped = static_cast<pid_t>(daemon.status().workers(1).pid());
  REQUIRE(::kill(stopped, SIGSTOP) == 0);
  std::thread caller([&] {
    for (int i = 0; i < 20000; ++i) session->call("aten::add_.Tensor", {x, 1});
  });
  std::this_thread::sleep_for(milliseconds(300));
  const Future<HostTensor> value = x.get();
  CHECK_FALSE(value.poll());
  const auto begin = Clock::now();
  CHECK(session->cancel().ok());
  CHECK(isCancelled(value.wait(kDeadline).status()));
  CHECK(Clock::now() - begin < seconds(1));
  CHECK(session->cancel().ok());
  REQUIRE(::kill(stopped, SIGCONT) == 0);
  caller.join();
  CHECK(isCancelled(x.get().wait(kDeadline).status()));
  const auto others = untouched.get().wait(kDeadline);
  REQUIRE(others.ok());
  CHECK(others->values<std::int64_t>()->front() == 0);
  CHECK(sumOfOnes(*session).value_or(0) == 8);
}

TEST_CASE("CANCEL-1: collectives that are cancelled at any moment leave their group as it was") {
  DaemonFixture daemon({.workers = 3, .flags = {"--comm.timeout", "20s"}});
  const auto session = daemon.connect();
  const std::vector<float> values = {1, 2, 3, 4, 5, 6, 7};
  for (int round = 0; round < 60; ++round) {
    Tensor x = session->put(HostView::of(values, {7}), session->mesh(), {Placement::shard(0)});
    for (int i = 0; i < 200; ++i) x = x.redistribute({i % 2 == 0 ? Placement::replicate() : Placement::shard(0)});
    const Future<HostTensor> value = x.get();
    std::this_thread::sleep_for(std::chrono::microseconds(round * 100));
    REQUIRE(session->cancel().ok());
    const absl::Status status = value.wait(kDeadline).status();
    CAPTURE(round, message(status));
    REQUIRE((status.ok() || isCancelled(status)));
    REQUIRE(sumOfOnes(*session).value_or(0) == 8);
  }
}

TEST_CASE("a call that is late fails with its time limit, and all that depends on it; nothing else does") {
  DaemonFixture daemon;
  const auto session = daemon.connect();
  const Tensor start = square(*session, session->mesh());
  const Tensor inTime = session->call("aten::mul.Tensor", {start, 2.0}, {.timeout = seconds(30)});
  REQUIRE(inTime.get().wait(kDeadline).ok());
  const Tensor written = session->call("aten::zeros", {Sizes{2}});
  REQUIRE(written.get().wait(kDeadline).ok());
  const Tensor busy = slow(*session, start, 40);
  const auto begin = Clock::now();
  const Tensor late = session->call("aten::add.Tensor", {start, start}, {.timeout = milliseconds(100)});
  const Tensor lateWrite = session->call("aten::add_.Tensor", {written, 1.0}, {.timeout = milliseconds(100)});
  const Future<HostTensor> dependent = add(late, late).get();
  const absl::Status error = dependent.wait(kDeadline).status();
  const auto took = Clock::now() - begin;
  CAPTURE(message(error));
  CHECK(failureKind(error) == FailureKind::kDeadline);
  CHECK(absl::StrContains(error.message(), "it was not done within 100 ms"));
  CHECK(absl::StrContains(error.message(), "aten::add.Tensor"));
  CHECK(absl::StrContains(error.message(), "cancel_test.cc"));
  CHECK(took >= milliseconds(90));
  CHECK(took < milliseconds(700));
  CHECK(failureKind(written.get().wait(kDeadline).status()) == FailureKind::kDeadline);
  CHECK(busy.get().wait(kDeadline).ok());
  CHECK(start.get().wait(kDeadline).ok());
  CHECK(sumOfOnes(*session).value_or(0) == 8);
  CHECK(failureKind(late.get().wait(kDeadline).status()) == FailureKind::kDeadline);
}

TEST_CASE("a put that is late fails with its time limit, too") {
  DaemonFixture daemon;
  const auto session = daemon.connect();
  const bool isLarge = GENERATE(false, true);
  const std::vector<float> values(isLarge ? 1 << 20 : 4, 1);
  const auto put = [&](milliseconds timeout) {
    const auto elements = static_cast<std::int64_t>(values.size());
    return session->put(HostView::of(values, {elements}), session->mesh(), {Placement::shard(0)}, {.timeout = timeout});
  };
  REQUIRE(put(seconds(30)).get().wait(kDeadline).ok());
  const auto stopped = static_cast<pid_t>(daemon.status().workers(1).pid());
  REQUIRE(::kill(stopped, SIGSTOP) == 0);
  const auto begin = Clock::now();
  const Tensor x = put(milliseconds(100));
  const absl::Status late = add(x, x).get().wait(kDeadline).status();
  CHECK(Clock::now() - begin < seconds(2));
  REQUIRE(::kill(stopped, SIGCONT) == 0);
  CAPTURE(message(late));
  CHECK(failureKind(late) == FailureKind::kDeadline);
  CHECK(absl::StrContains(late.message(), "put"));
  CHECK(absl::StrContains(late.message(), "cancel_test.cc"));
  CHECK(put(seconds(30)).get().wait(kDeadline).ok());
  CHECK(sumOfOnes(*session).value_or(0) == 8);
}

TEST_CASE("a redistribution that is late fails with its time limit, too") {
  DaemonFixture daemon;
  const auto session = daemon.connect();
  const std::vector<float> values = {1, 2, 3, 4};
  const Tensor x = session->put(HostView::of(values, {4}), session->mesh(), {Placement::shard(0)});
  REQUIRE(x.redistribute({Placement::replicate()}, {.timeout = seconds(30)}).get().wait(kDeadline).ok());
  const auto stopped = static_cast<pid_t>(daemon.status().workers(1).pid());
  REQUIRE(::kill(stopped, SIGSTOP) == 0);
  const absl::Status late =
      x.redistribute({Placement::replicate()}, {.timeout = milliseconds(100)}).get().wait(kDeadline).status();
  REQUIRE(::kill(stopped, SIGCONT) == 0);
  CAPTURE(message(late));
  CHECK(failureKind(late) == FailureKind::kDeadline);
  CHECK(absl::StrContains(late.message(), "redistribute"));
  CHECK(x.get().wait(kDeadline).ok());
}

TEST_CASE("CANCEL-1: meshes that overlap agree on what is dropped") {
  DaemonFixture daemon({.workers = 3, .flags = {"--comm.timeout", "20s"}});
  const auto session = daemon.connect();
  const auto some = session->mesh({0, 1});
  REQUIRE(some.ok());
  const std::vector<float> values = {1, 2, 3, 4, 5, 6, 7};
  for (int round = 0; round < 40; ++round) {
    std::vector<Tensor> ends;
    for (const Mesh* mesh : {&session->mesh(), &*some}) {
      ends.push_back(session->put(HostView::of(values, {7}), *mesh, {Placement::shard(0)}));
    }
    for (int i = 0; i < 100; ++i) {
      for (Tensor& x : ends) x = x.redistribute({i % 2 == 0 ? Placement::replicate() : Placement::shard(0)});
    }
    std::vector<Tensor> drawn;
    for (int i = 0; i < 20; ++i) drawn.push_back(session->call("aten::rand", {Sizes{2}}, {.mesh = session->mesh()}));
    const std::vector<Future<HostTensor>> pending = {ends[0].get(), ends[1].get(), drawn.back().get()};
    std::this_thread::sleep_for(std::chrono::microseconds(round * 200));
    REQUIRE(session->cancel().ok());
    for (const Future<HostTensor>& value : pending) {
      const absl::Status status = value.wait(kDeadline).status();
      CAPTURE(round, message(status));
      REQUIRE((status.ok() || isCancelled(status)));
    }
    REQUIRE(sumOfOnes(*session).value_or(0) == 8);
    // All ranks have drawn the same numbers.
    const Tensor next = session->call("aten::rand", {Sizes{2}}, {.mesh = session->mesh()});
    std::vector<std::vector<float>> parts;
    for (Rank rank = 0; rank < 3; ++rank) {
      const auto part = next.getLocal(rank).wait(kDeadline);
      REQUIRE(part.ok());
      const auto numbers = *part->values<float>();
      parts.emplace_back(numbers.begin(), numbers.end());
    }
    REQUIRE(parts[0] == parts[1]);
    REQUIRE(parts[0] == parts[2]);
  }
}

TEST_CASE("a value that is only fetched is cancelled, too, while its worker stands still") {
  DaemonFixture daemon;
  const auto session = daemon.connect();
  const std::vector<float> values = {1, 2};
  const Tensor x = session->put(HostView::of(values, {2}), session->mesh());
  REQUIRE(x.get().wait(kDeadline).ok());
  const auto stopped = static_cast<pid_t>(daemon.status().workers(0).pid());
  REQUIRE(::kill(stopped, SIGSTOP) == 0);
  const Future<HostTensor> whole = x.get();
  const Future<HostTensor> part = x.getLocal(0);
  CHECK(absl::IsDeadlineExceeded(whole.wait(milliseconds(50)).status()));
  REQUIRE(session->cancel().ok());
  CHECK(isCancelled(whole.wait(seconds(5)).status()));
  CHECK(isCancelled(part.wait(seconds(5)).status()));
  REQUIRE(::kill(stopped, SIGCONT) == 0);
  CHECK(x.get().wait(kDeadline).ok());
}

TEST_CASE("what was asked for before a late write is what it was") {
  DaemonFixture daemon;
  const auto session = daemon.connect();
  const Tensor start = square(*session, session->mesh());
  const Tensor written = session->call("aten::zeros", {Sizes{2}});
  REQUIRE(written.get().wait(kDeadline).ok());
  const Tensor busy = slow(*session, start, 40);
  const Future<HostTensor> before = written.get();
  const Tensor late = session->call("aten::add_.Tensor", {written, 1.0}, {.timeout = milliseconds(50)});
  const Future<HostTensor> after = written.get();
  CHECK(failureKind(after.wait(kDeadline).status()) == FailureKind::kDeadline);
  const auto value = before.wait(kDeadline);
  REQUIRE(value.ok());
  CHECK(value->values<float>()->front() == 0);
  CHECK(busy.get().wait(kDeadline).ok());
  // One call was late, and one failure is told of.
  CHECK(session->synchronize().wait(kDeadline).ok());
}

TEST_CASE("a call that waits for its turn is late, too") {
  DaemonFixture daemon({.flags = {"--executor.max_operators_in_flight", "100"}});
  const auto session = daemon.connect();
  const std::vector<float> values = {1, 2};
  const Tensor x = session->put(HostView::of(values, {2}), session->mesh());
  REQUIRE(x.get().wait(kDeadline).ok());
  const auto stopped = static_cast<pid_t>(daemon.status().workers(1).pid());
  REQUIRE(::kill(stopped, SIGSTOP) == 0);
  std::vector<Tensor> all;
  for (int i = 0; i < 300; ++i)
    all.push_back(session->call("aten::mul.Tensor", {x, 2.0}, {.timeout = milliseconds(200)}));
  const auto begin = Clock::now();
  for (const Tensor& each : all) {
    REQUIRE(failureKind(each.get().wait(kDeadline).status()) == FailureKind::kDeadline);
  }
  CHECK(Clock::now() - begin < seconds(3));
  REQUIRE(::kill(stopped, SIGCONT) == 0);
  CHECK(x.get().wait(kDeadline).ok());
  CHECK(eventually([&] { return session->synchronize().wait(kDeadline).ok(); }, kDeadline));
}

TEST_CASE("nobody cancels another session's calls") {
  DaemonFixture daemon;
  const auto session = daemon.connect();
  const auto other = daemon.connect();
  const Tensor end = slow(*other, square(*other, other->mesh()), 20);
  const Future<HostTensor> value = end.get();
  REQUIRE(session->cancel().ok());
  const auto stub =
      v1::Dtorch::NewStub(grpc::CreateChannel("unix:" + daemon.socket(), grpc::InsecureChannelCredentials()));
  v1::CancelRequest request;
  request.set_protocol(kProtocolVersion);
  request.set_session(other->id());
  request.set_token(12345);
  request.set_serial(1);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + seconds(20));
  v1::CancelReply reply;
  CHECK(stub->Cancel(&context, request, &reply).ok());  // nobody learns whether it was right
  CHECK(value.wait(kDeadline).ok());
}

}  // namespace dtorch
