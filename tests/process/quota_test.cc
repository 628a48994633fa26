// Limits over all sessions: each refusal names the limit and its configuration key, and costs nobody else.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "client/cpp/operators.h"
#include "client/cpp/session.h"
#include "tests/catch.h"
#include "tests/process/daemon_fixture.h"

namespace dtorch {
namespace {

constexpr auto kDeadline = std::chrono::seconds(20);

bool isOverQuota(const absl::Status& status, const std::string& key) {
  INFO(std::string(status.message()));
  CHECK(failureKind(status) == FailureKind::kOverQuota);
  CHECK(absl::StrContains(status.message(), key));
  return failureKind(status) == FailureKind::kOverQuota && absl::StrContains(status.message(), key);
}

}  // namespace

TEST_CASE("one session too many is refused, and a later one is not") {
  DaemonFixture daemon({.flags = {"--sessions.max_count", "2"}});
  const auto first = daemon.connect();
  auto second = daemon.connect();
  const auto third = Session::connect({.address = daemon.socket()});
  CHECK(isOverQuota(third.status(), "sessions.max_count = 2"));
  CHECK(sumOfOnes(*first).value_or(0) == 8);
  CHECK(sumOfOnes(*second).value_or(0) == 8);
  second.reset();
  CHECK(eventually([&] { return Session::connect({.address = daemon.socket()}).ok(); }, kDeadline));
}

TEST_CASE("what all sessions hold together is bounded") {
  DaemonFixture daemon({.flags = {"--sessions.max_tensors", "10", "--sessions.max_bytes", "1MiB"}});
  const auto one = daemon.connect();
  auto other = daemon.connect();
  const auto ones = [](Session& session, std::int64_t elements) {
    return session.call("aten::ones", {Sizes{elements}}, {.mesh = session.mesh()});
  };
  std::vector<Tensor> held;
  for (int i = 0; i < 6; ++i) held.push_back(ones(*other, 2));
  REQUIRE(other->synchronize().wait(kDeadline).ok());
  std::vector<Tensor> own;
  for (int i = 0; i < 4; ++i) own.push_back(ones(*one, 2));
  REQUIRE(one->synchronize().wait(kDeadline).ok());
  CHECK(isOverQuota(ones(*one, 2).get().wait(kDeadline).status(), "sessions.max_tensors = 10"));
  CHECK(own[0].get().wait(kDeadline).ok());
  CHECK(held[0].get().wait(kDeadline).ok());
  SECTION("released tensors make room for all") {
    held.clear();
    REQUIRE(other->synchronize().wait(kDeadline).ok());
    CHECK(ones(*one, 2).get().wait(kDeadline).ok());
    CHECK(isOverQuota(ones(*one, 1 << 20).get().wait(kDeadline).status(), "sessions.max_bytes = 1048576"));
    const std::vector<float> values(1 << 20, 1);
    const absl::Status put = one->put(HostView::of(values, {1 << 20}), one->mesh()).get().wait(kDeadline).status();
    CHECK(isOverQuota(put, "sessions.max_bytes = 1048576"));
    CHECK(ones(*one, 2).get().wait(kDeadline).ok());
  }
  SECTION("so do those of a session that ends") {
    held.clear();
    other.reset();
    CHECK(eventually([&] { return ones(*one, 2).get().wait(kDeadline).ok(); }, kDeadline));
  }
}

TEST_CASE("memory is charged once, whoever shares it, and as long as somebody does") {
  DaemonFixture daemon({.flags = {"--session.max_bytes", "5MiB"}});
  const auto session = daemon.connect();
  const auto make = [&] {
    return session->call("aten::ones", {Sizes{1 << 20}}, {.mesh = session->mesh()});  // 4 MiB
  };
  std::optional<Tensor> base = make();
  session->call("aten::add_.Scalar", {*base, 1.0});
  std::optional<Tensor> view =
      session->call("aten::slice.Tensor", {*base, std::int64_t{0}, std::int64_t{0}, std::int64_t{8}});
  const Tensor wide = session->call("aten::expand", {*view, Sizes{1 << 20, 8}});
  CHECK(session->call("aten::sum", {*view}).get().wait(kDeadline)->item().value_or(0) == 16);
  CHECK(isOverQuota(make().get().wait(kDeadline).status(), "session.max_bytes = 5242880"));
  CHECK(isOverQuota(wide.get().wait(kDeadline).status(), "session.max_bytes = 5242880"));  // its value is no view
  base.reset();  // the views still hold its memory
  CHECK(isOverQuota(make().get().wait(kDeadline).status(), "session.max_bytes = 5242880"));
}

TEST_CASE("memory that views have held is free when the last is gone") {
  DaemonFixture daemon({.flags = {"--session.max_bytes", "5MiB"}});
  const auto session = daemon.connect();
  for (int round = 0; round < 3; ++round) {
    CAPTURE(round);
    std::optional<Tensor> base = session->call("aten::ones", {Sizes{1 << 20}}, {.mesh = session->mesh()});
    const Tensor refused = session->call("aten::slice.Tensor", {*base, std::int64_t{7}});  // holds nothing
    const Tensor view = session->call("aten::t", {session->call("aten::alias", {*base})});
    base.reset();
    CHECK(view.get().wait(kDeadline).ok());
  }
}

}  // namespace dtorch
