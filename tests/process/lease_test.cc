// Clients that end, stop or vanish without a word: their sessions end with their lease, and nobody else's.
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/session.h"
#include "daemon/file_descriptor.h"
#include "tests/catch.h"
#include "tests/daemon/rpc_processes.h"
#include "tests/process/daemon_fixture.h"

namespace dtorch {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Sizes = std::vector<std::int64_t>;
constexpr auto kDeadline = seconds(30);
constexpr auto kLease = milliseconds(2000);
const std::vector<std::string> kShortLease = {"--session.lease", "2s"};

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return address;
}

int connectTo(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = loopback(port);
  REQUIRE(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  return fd;
}

std::pair<int, int> listenAnywhere() {  // descriptor, port
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = loopback(0);
  REQUIRE(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  REQUIRE(::listen(fd, 8) == 0);
  socklen_t size = sizeof(address);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  return {fd, ntohs(address.sin_port)};
}

/// A network between a client and a daemon: after cut() it takes what is sent and delivers nothing, and neither side
/// hears of it.
class Network {
 public:
  explicit Network(int daemonPort) {
    auto [fd, port] = listenAnywhere();
    listening_ = FileDescriptor(fd);
    port_ = port;
    thread_ = std::thread([this, daemonPort] {
      client_ = FileDescriptor(::accept(listening_.get(), nullptr, nullptr));
      daemon_ = FileDescriptor(connectTo(daemonPort));
      std::thread back([this] { forward(daemon_.get(), client_.get()); });
      forward(client_.get(), daemon_.get());
      back.join();
    });
  }
  ~Network() {
    ::shutdown(client_.get(), SHUT_RDWR);
    ::shutdown(daemon_.get(), SHUT_RDWR);
    thread_.join();
  }
  int port() const { return port_; }
  void cut() { isCut_ = true; }

 private:
  void forward(int from, int to) {
    std::vector<char> bytes(1 << 16);
    for (ssize_t count = 0; (count = ::read(from, bytes.data(), bytes.size())) > 0;) {
      if (!isCut_ && ::write(to, bytes.data(), static_cast<std::size_t>(count)) != count) return;
    }
  }

  FileDescriptor listening_;
  FileDescriptor client_;
  FileDescriptor daemon_;
  int port_ = 0;
  std::atomic<bool> isCut_ = false;
  std::thread thread_;
};

std::int64_t tensorBytes(const DaemonFixture& daemon) {
  const v1::StatusReply status = daemon.status();
  return status.workers(0).tensor_bytes() + status.workers(1).tensor_bytes();
}

}  // namespace

// Holds 4 MiB on the daemon at DTORCH_TEST_SOCKET, and does what it is told.
TEST_CASE("role: holder", "[.]") {
  const auto session = Session::connect({.address = roleVariable("DTORCH_TEST_SOCKET")});
  if (!session.ok()) return roleSays("failed");
  const std::vector<float> values(1 << 20, 1);
  const Tensor x = (*session)->put(HostView::of(values, {1 << 20}), (*session)->mesh(), {Placement::shard(0)});
  if (!x.get().get().ok()) return roleSays("failed");
  roleSays("holds");
  std::vector<Future<HostTensor>> wanted;
  std::string line;
  while (roleHears(&line)) {
    if (line == "ask for much") {
      for (int i = 0; i < 64; ++i) wanted.push_back((*session)->call("aten::ones", {Sizes{15'000}}).get());
      wanted.back().wait(milliseconds(200)).IgnoreError();
      roleSays("asked");
    } else if (line == "exit") {
      ::_exit(0);
    }
  }
}

TEST_CASE("a client that is killed loses its session at once") {
  DaemonFixture daemon;
  const auto other = daemon.connect();
  RoleProcess client("role: holder", {{"DTORCH_TEST_SOCKET", daemon.socket()}});
  REQUIRE(client.readLine().value_or("") == "holds");
  REQUIRE(eventually([&] { return tensorBytes(daemon) >= 4 << 20; }, seconds(5)));
  CHECK(daemon.status().sessions_lost() == 0);
  client.signal(SIGKILL);
  CHECK(eventually([&] { return daemon.status().sessions_lost() == 1; }, seconds(1)));
  CHECK(daemon.status().sessions_size() == 1);
  CHECK(eventually([&] { return tensorBytes(daemon) == 0; }, seconds(5)));
  CHECK(sumOfOnes(*other).value_or(0) == 8);
}

TEST_CASE("a client that ends with its session open, or with it closed") {
  DaemonFixture daemon;
  const bool open = GENERATE(false, true);
  RoleProcess client("role: holder", {{"DTORCH_TEST_SOCKET", daemon.socket()}});
  REQUIRE(client.readLine().value_or("") == "holds");
  if (open) {
    client.writeLine("exit");
  } else {
    client.closeInput();  // it returns from the session's scope
  }
  REQUIRE(client.wait().has_value());
  CHECK(eventually([&] { return daemon.status().sessions_size() == 0; }, seconds(5)));
  CHECK(daemon.status().sessions_lost() == (open ? 1 : 0));
}

TEST_CASE("a stopped client keeps its session for its lease, and goes on if it continues before") {
  DaemonFixture daemon({.flags = kShortLease});
  const auto other = daemon.connect();
  RoleProcess client("role: holder", {{"DTORCH_TEST_SOCKET", daemon.socket()}});
  REQUIRE(client.readLine().value_or("") == "holds");
  // At any moment between two looks of the daemon.
  for (int round = 0; round < 4; ++round) {
    std::this_thread::sleep_for(round * kLease / 8);
    client.signal(SIGSTOP);
    std::this_thread::sleep_for(kLease * 9 / 10);
    client.signal(SIGCONT);
    client.writeLine("ask for much");
    REQUIRE(client.readLine().value_or("") == "asked");
  }
  CHECK(daemon.status().sessions_lost() == 0);

  const bool unread = GENERATE(false, true);
  CAPTURE(unread);
  if (unread) {  // more than its socket holds is on its way to it
    const auto worker = static_cast<pid_t>(daemon.status().workers(0).pid());  // who has the values
    REQUIRE(::kill(worker, SIGSTOP) == 0);
    client.writeLine("ask for much");
    REQUIRE(client.readLine().value_or("") == "asked");
    const auto holderWaits = [&] {
      const v1::StatusReply status = daemon.status();
      return status.sessions_size() == 2 && status.sessions(1).futures() > 0;
    };
    REQUIRE(eventually(holderWaits, seconds(5)));
    client.signal(SIGSTOP);
    REQUIRE(::kill(worker, SIGCONT) == 0);
  } else {
    client.signal(SIGSTOP);
  }
  const auto stopped = Clock::now();
  std::this_thread::sleep_for(kLease * 4 / 5);
  CHECK(daemon.status().sessions_size() == 2);
  CHECK(eventually([&] { return daemon.status().sessions_lost() == 1; }, kDeadline));
  CHECK(Clock::now() - stopped < 3 * kLease);
  CHECK(eventually([&] { return tensorBytes(daemon) == 0; }, seconds(5)));
  CHECK(daemon.status().sessions_size() == 1);
  CHECK(sumOfOnes(*other).value_or(0) == 8);
}

TEST_CASE("a client whose network is no more loses its session with its lease, one that is idle does not") {
  const int port = freeTcpPort();
  DaemonFixture daemon({.flags = {"--session.lease", "2s", "--listen.tcp", absl::StrCat("127.0.0.1:", port)}});
  const auto idle = daemon.connect();
  Network network(port);
  auto session = Session::connect({absl::StrCat("127.0.0.1:", network.port()), seconds(10), "far"});
  REQUIRE(session.ok());
  CHECK(sumOfOnes(**session).value_or(0) == 8);
  std::this_thread::sleep_for(3 * kLease);
  CHECK(daemon.status().sessions_size() == 2);
  network.cut();
  CHECK(eventually([&] { return daemon.status().sessions_lost() == 1; }, 3 * kLease));
  CHECK(daemon.status().sessions_size() == 1);
  CHECK(sumOfOnes(*idle).value_or(0) == 8);
}

}  // namespace dtorch
