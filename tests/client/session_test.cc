#include "client/cpp/session.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <future>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "client/cpp/address.h"
#include "client/cpp/operators.h"
#include "tests/catch.h"
#include "tests/client/fake_daemon.h"

namespace dtorch {
namespace {

using namespace std::chrono_literals;
using Catch::Matchers::Contains;

std::string text(const absl::Status& status) { return std::string(status.message()); }

std::shared_ptr<Session> connect(const FakeDaemon& daemon) {
  auto session = Session::connect({daemon.socket(), 10s, "test"});
  INFO(session.status().message());
  REQUIRE(session.ok());
  return *session;
}

Tensor put(Session& session, const std::vector<float>& values, Site site = std::source_location::current()) {
  return session.put(HostView::of(values, {static_cast<std::int64_t>(values.size())}), session.mesh(), {}, {}, site);
}

TEST_CASE("connect() tells what the daemon is") {
  FakeDaemon daemon;
  const auto session = connect(daemon);
  CHECK(session->id() == 7);
  CHECK(session->worldSize() == 2);
  CHECK(session->daemonVersion() == "9.9.9");
  CHECK(session->daemonPid() == ::getpid());
  CHECK(session->mesh().device().ranks() == std::vector<Rank>{0, 1});
  CHECK_THAT(daemon.clientName(), Contains("test (dtorch-cpp") && Contains(std::to_string(::getpid())));
}

TEST_CASE("connect() without a daemon is UNAVAILABLE at once and names the address") {
  const auto start = std::chrono::steady_clock::now();
  const auto session = Session::connect({"/tmp/dtorch-no-such-daemon.sock", 30s, ""});
  CHECK(session.status().code() == absl::StatusCode::kUnavailable);
  CHECK_THAT(text(session.status()), Contains("unix:/tmp/dtorch-no-such-daemon.sock") && Contains("start dtorchd"));
  CHECK(std::chrono::steady_clock::now() - start < 10s);
}

TEST_CASE("connect() gives up at its deadline when the daemon does not answer the hello") {
  FakeDaemon::Options options;
  options.answersHello = false;
  FakeDaemon daemon(options);
  CHECK(Session::connect({daemon.socket(), 200ms, ""}).status().code() == absl::StatusCode::kDeadlineExceeded);
}

TEST_CASE("connect() gives up at its deadline when something else has the socket") {
  std::string folder = "/tmp/dtorch-mute-XXXXXX";
  REQUIRE(::mkdtemp(folder.data()) != nullptr);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = folder + "/socket";
  std::strcpy(address.sun_path, path.c_str());
  const int mute = ::socket(AF_UNIX, SOCK_STREAM, 0);
  REQUIRE(::bind(mute, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  REQUIRE(::listen(mute, 8) == 0);
  CHECK(Session::connect({path, 300ms, ""}).status().code() == absl::StatusCode::kDeadlineExceeded);
  ::close(mute);
  ::unlink(path.c_str());
  ::rmdir(folder.c_str());
}

TEST_CASE("Another protocol is FAILED_PRECONDITION, and the text names both") {
  FakeDaemon::Options options;
  SECTION("when the welcome shows it") {
    options.protocol = kProtocolVersion + 41;
    FakeDaemon daemon(options);
    const absl::Status status = Session::connect({daemon.socket(), 10s, ""}).status();
    CHECK(status.code() == absl::StatusCode::kFailedPrecondition);
    CHECK_THAT(text(status), Contains("protocol " + std::to_string(kProtocolVersion)) &&
                                 Contains("speaks " + std::to_string(kProtocolVersion + 41)) && Contains("9.9.9"));
  }
  SECTION("when the daemon refuses") {
    options.refusal = {grpc::StatusCode::FAILED_PRECONDITION, "client protocol 1, mine is 2"};
    FakeDaemon daemon(options);
    const absl::Status status = Session::connect({daemon.socket(), 10s, ""}).status();
    CHECK(status.code() == absl::StatusCode::kFailedPrecondition);
    CHECK_THAT(text(status), Contains("client protocol 1, mine is 2"));
  }
}

TEST_CASE("A value comes back bit for bit: empty, small, strided, and of 300 MiB") {
  FakeDaemon daemon;
  const auto session = connect(daemon);
  const std::size_t count = GENERATE(0u, 1u, 16384u, 16385u, 300u << 18);
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 0.5f);
  const auto value = put(*session, values).get().wait(60s);
  REQUIRE(value.ok());
  CHECK(value->shape() == Sizes{static_cast<std::int64_t>(count)});
  const auto returned = *value->values<float>();
  CHECK(std::equal(returned.begin(), returned.end(), values.begin(), values.end()));
}

TEST_CASE("Calls are sent in order and in batches, without anybody waiting") {
  FakeDaemon daemon;
  const auto session = connect(daemon);
  const Tensor x = put(*session, {1});
  std::vector<Tensor> kept;
  for (int i = 0; i < 2000; ++i) kept.push_back(add(x, x));
  std::uint64_t last = 0;
  std::size_t calls = 0;
  for (const v1::Command& command : daemon.waitForCommands(2000)) {
    if (command.template_id() == 0) continue;
    ++calls;
    CHECK(command.first_output() > last);
    last = command.first_output();
  }
  CHECK(calls > 1900);
  const auto sizes = daemon.batchSizes();
  CHECK(*std::max_element(sizes.begin(), sizes.end()) >= 256);
}

TEST_CASE("What is called is sent without a wait, by time alone") {
  FakeDaemon daemon;
  const auto session = connect(daemon);
  const Tensor x = put(*session, {1});
  const auto commands = daemon.waitForCommands(3);  // mesh, site, put
  CHECK(commands.size() == 3);
}

TEST_CASE("An operator's error reaches the future of what depends on it") {
  FakeDaemon daemon;
  const auto session = connect(daemon);
  const absl::Status status = add(put(*session, {1}), 1).get().wait(10s).status();
  CHECK(status.code() == absl::StatusCode::kNotFound);
  CHECK_THAT(text(status), Contains("aten::anything: this daemon computes nothing"));
  CHECK(operatorError(status)->operatorName == "aten::anything");
  CHECK(session->synchronize().wait(10s).ok());
}

TEST_CASE("A daemon that vanishes ends every wait with UNAVAILABLE") {
  std::promise<void> reached;
  FakeDaemon::Options options;
  std::promise<void> release;
  std::shared_future<void> released = release.get_future().share();
  options.onCommand = [&](const v1::Command& command) {
    if (command.has_get()) {
      reached.set_value();
      released.wait_for(10s);
    }
    return grpc::Status::OK;
  };
  FakeDaemon daemon(options);
  const auto session = connect(daemon);
  const Tensor x = put(*session, {1});
  const Future<HostTensor> future = x.get();
  std::future<absl::Status> waiting = std::async(std::launch::async, [&] { return future.get().status(); });
  reached.get_future().wait_for(10s);
  std::thread killer([&] { daemon.vanish(); });
  const absl::Status status = waiting.get();
  release.set_value();
  killer.join();
  CHECK(status.code() == absl::StatusCode::kUnavailable);
  CHECK_THAT(text(status), Contains(daemon.socket()));
  CHECK(add(x, x).get().wait(10s).status() == status);
  CHECK(put(*session, {2}).get().wait(10s).status() == status);
}

TEST_CASE("A session that the daemon ends keeps the daemon's own cause") {
  const auto repetition = GENERATE(range(0, 30));
  CAPTURE(repetition);
  FakeDaemon::Options options;
  options.onCommand = [](const v1::Command& command) {
    return command.has_get() ? grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "too many tensors")
                             : grpc::Status::OK;
  };
  FakeDaemon daemon(options);
  const auto session = connect(daemon);
  const absl::Status status = put(*session, {1}).get().wait(10s).status();
  CHECK(status.code() == absl::StatusCode::kResourceExhausted);
  CHECK_THAT(text(status), Contains("too many tensors"));
}

TEST_CASE("A session that is closed sends what was called, and what is left fails") {
  FakeDaemon daemon;
  auto session = connect(daemon);
  const Tensor x = put(*session, {1});
  const Tensor y = add(x, x);
  session.reset();
  const auto commands = daemon.waitForCommands(6);  // mesh, site, put, template, site, call
  CHECK(commands.back().template_id() != 0);
  CHECK(y.get().wait(10s).status().code() == absl::StatusCode::kUnavailable);
  CHECK(add(y, x).get().wait(10s).status().code() == absl::StatusCode::kUnavailable);
}

TEST_CASE("A daemon that does not read holds the caller back, and closing is still quick") {
  FakeDaemon::Options options;
  std::promise<void> release;
  std::shared_future<void> released = release.get_future().share();
  options.onCommand = [&](const v1::Command& command) {
    if (command.has_synchronize()) released.wait_for(30s);
    return grpc::Status::OK;
  };
  FakeDaemon daemon(options);
  auto session = connect(daemon);
  const Future<void> future = session->synchronize();
  future.poll();
  const std::vector<float> values(1u << 20);
  std::atomic<int> puts = 0;
  std::future<void> caller = std::async(std::launch::async, [&] {
    for (int i = 0; i < 200; ++i, ++puts) put(*session, values);  // 800 MiB
  });
  CHECK(caller.wait_for(1s) == std::future_status::timeout);
  CHECK(puts < 100);
  release.set_value();
  CHECK(caller.wait_for(60s) == std::future_status::ready);
}

TEST_CASE("Closing a session whose daemon hangs takes no longer than its limit") {
  FakeDaemon::Options options;
  std::promise<void> release;
  std::shared_future<void> released = release.get_future().share();
  options.onCommand = [&](const v1::Command&) {
    released.wait_for(30s);
    return grpc::Status::OK;
  };
  FakeDaemon daemon(options);
  auto session = connect(daemon);
  const Future<void> future = session->synchronize();
  future.poll();
  const auto start = std::chrono::steady_clock::now();
  session.reset();
  CHECK(std::chrono::steady_clock::now() - start < 5s);
  CHECK(future.get().code() == absl::StatusCode::kUnavailable);
  release.set_value();
}

TEST_CASE("A mesh is checked before it is used") {
  FakeDaemon daemon;
  const auto session = connect(daemon);
  const auto mesh = session->mesh({1, 0}, {1, 2}, {"data", "model"});
  REQUIRE(mesh.ok());
  CHECK(mesh->device().toString() == "cpu[1, 2](1, 0)");
  CHECK_THAT(text(session->mesh({0, 2}).status()), Contains("rank 2 does not exist"));
  CHECK(session->mesh({0, 0}).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(session->mesh({0, 1}, {3}).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(session->putShards({}, {1}, session->mesh(), {}).get().get().status().code() ==
        absl::StatusCode::kInvalidArgument);
}

TEST_CASE("The default address is the environment's, else a socket that exists, else where a daemon would put it") {
  const auto restore = [](const char* name) {
    const char* value = std::getenv(name);
    return std::pair(std::string(name), value == nullptr ? std::optional<std::string>() : std::string(value));
  };
  const std::vector saved{restore("DTORCH_SOCKET"), restore("XDG_RUNTIME_DIR")};
  ::setenv("DTORCH_SOCKET", "/some/where.sock", 1);
  CHECK(defaultAddress() == "unix:/some/where.sock");
  ::setenv("DTORCH_SOCKET", "localhost:4077", 1);
  CHECK(defaultAddress() == "localhost:4077");
  ::unsetenv("DTORCH_SOCKET");
  FakeDaemon daemon;
  const std::string folder = daemon.socket().substr(0, daemon.socket().rfind('/'));
  REQUIRE(::symlink(folder.c_str(), (folder + "/dtorch").c_str()) == 0);
  ::setenv("XDG_RUNTIME_DIR", folder.c_str(), 1);
  CHECK(defaultAddress() == "unix:" + folder + "/dtorch/dtorchd.sock");
  ::unlink((folder + "/dtorch").c_str());
  for (const auto& [name, value] : saved) {
    if (value)
      ::setenv(name.c_str(), value->c_str(), 1);
    else
      ::unsetenv(name.c_str());
  }
}

// What a forked child does with its parent's session; 0: all was refused, and nothing waited.
int useInChild(FakeDaemon& daemon, std::shared_ptr<Session> session, Tensor tensor, Future<void> unresolved) {
  const auto isRefused = [](const absl::Status& status) {
    return absl::IsFailedPrecondition(status) && absl::StrContains(status.message(), "forked");
  };
  if (!isRefused(unresolved.get())) return 1;
  if (!isRefused(tensor.get().wait(5s).status())) return 2;
  if (!isRefused(add(tensor, tensor).get().get().status())) return 3;
  if (!isRefused(put(*session, {1}).describe().get().status())) return 4;
  if (!isRefused(session->call("aten::ones", {std::vector<std::int64_t>{2}}).get().get().status())) return 5;
  if (!isRefused(session->mesh({0}).status())) return 6;
  if (!isRefused(session->cancel())) return 7;
  if (!isRefused(session->synchronize().get())) return 8;
  if (!isRefused(Session::connect({daemon.socket(), 5s, "child"}).status())) return 9;
  return 0;
}

TEST_CASE("a forked child is refused its parent's session at once, whatever its parent's threads hold") {
  FakeDaemon daemon;
  auto session = connect(daemon);
  std::atomic<bool> stop = false;
  std::thread busy([&] {
    while (!stop) put(*session, {1, 2});  // and releases it
  });
  for (int round = 0; round < 20; ++round) {
    CAPTURE(round);
    Tensor tensor = put(*session, {1, 2});
    Future<void> future = session->awaitWorkers();  // which the daemon never answers
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);  // ends a child that waits
      const int code = useInChild(daemon, std::move(session), std::move(tensor), std::move(future));
      ::_exit(code);  // its copies are gone: the last of the session, of the tensor, and of the future
    }
    int status = 0;
    CHECK(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
  stop = true;
  busy.join();
  CHECK(put(*session, {3}).get().get().ok());
}

}  // namespace
}  // namespace dtorch
