// A machine that has no descriptor, no disk or no /dev/shm left: refused cleanly, and all is well when there is some
// again.
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/session.h"
#include "client/ctl/daemon_client.h"
#include "daemon/file_descriptor.h"
#include "tests/catch.h"
#include "tests/daemon/rpc_processes.h"
#include "tests/process/daemon_fixture.h"

namespace dtorch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Sizes = std::vector<std::int64_t>;
constexpr auto kDeadline = seconds(30);

/// A program that mounts a file system of its own at a folder, which no other process sees, and becomes the rest.
std::vector<std::string> withMount(const std::string& folder, const std::string& size) {
  std::vector<std::string> words = {"/usr/bin/unshare", "--mount"};
  if (::getuid() != 0) words.push_back("--map-root-user");
  words.insert(words.end(), {"/bin/sh", "-c",
                             absl::StrCat("mount -t tmpfs -o size=", size, " tmpfs ", folder,
                                          " && head -c 100000000 /dev/zero 2>/dev/null > ", folder, "/filler; ",
                                          "exec \"$0\" \"$@\"")});
  return words;
}

bool crosses(Session& session, std::size_t floats) {
  const std::vector<float> values(floats, 2);
  const auto count = static_cast<std::int64_t>(floats);
  const Tensor x = session.put(HostView::of(values, {count}), session.mesh(), {Placement::shard(0)});
  const auto whole = call("aten::add.Tensor", {x, x}).get().wait(kDeadline);
  return whole.ok() && whole->values<float>()->back() == 4;
}

// What fails is logged, with its text.
void fail(Session& session, int count) {
  const Tensor x = session.call("aten::ones", {Sizes{4, 4}});
  for (int i = 0; i < count; ++i) {
    REQUIRE_FALSE(call("aten::linalg_cholesky", {call("aten::neg", {x})}).get().wait(kDeadline).ok());
  }
}

}  // namespace

TEST_CASE("without descriptors new sessions are refused, and come when there are some again") {
  // Beyond what the daemon needs itself, for some tens of clients.
  constexpr int kDescriptors = 96;
  DaemonFixture daemon({.prefix = {"/usr/bin/prlimit", absl::StrCat("--nofile=", kDescriptors)}});
  const auto first = daemon.connect();
  REQUIRE(sumOfOnes(*first).value_or(0) == 8);
  std::vector<std::shared_ptr<Session>> crowd;
  absl::Status refused;
  while (refused.ok() && crowd.size() < 2 * kDescriptors) {
    auto session = Session::connect({daemon.socket(), seconds(2), "crowd"});
    refused = session.status();
    if (session.ok()) crowd.push_back(*session);
  }
  INFO(crowd.size() << " sessions, then " << refused);
  CHECK(crowd.size() > 10);
  CHECK(absl::IsResourceExhausted(refused));
  CHECK(absl::StrContains(refused.message(), absl::StrCat(kDescriptors, " open files")));
  CHECK(sumOfOnes(*first).value_or(0) == 8);
  CHECK(crosses(*first, 1 << 20));
  for (const auto& session : crowd) CHECK(sumOfOnes(*session).ok());
  crowd.clear();
  CHECK(eventually(
      [&] {
        const auto session = Session::connect({daemon.socket(), seconds(2), "later"});
        return session.ok() && sumOfOnes(**session).value_or(0) == 8;
      },
      kDeadline));
}

TEST_CASE("a daemon that may not open the files that it needs does not start, and says how many") {
  const TempDir folder;
  const ProgramResult result = runProgram(
      {"/usr/bin/prlimit", "--nofile=52", binFolder() + "/dtorchd", "--runtime.dir", folder.path()}, seconds(30));
  INFO(result.output);
  CHECK(result.exitCode == 1);
  CHECK(absl::StrContains(result.output, "may have 52 open files and needs more than 64"));
}

TEST_CASE("connections without a session do not take the last descriptors: a lost worker is replaced") {
  DaemonFixture daemon({.flags = {"--workers.restart_delay", "20ms"}, .prefix = {"/usr/bin/prlimit", "--nofile=96"}});
  const auto session = daemon.connect();
  REQUIRE(sumOfOnes(*session).value_or(0) == 8);
  const auto victim = static_cast<pid_t>(daemon.status().workers(1).pid());
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  daemon.socket().copy(address.sun_path, sizeof(address.sun_path) - 1);
  std::vector<FileDescriptor> idle;
  for (int i = 0; i < 120; ++i) {
    FileDescriptor fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
    idle.push_back(std::move(fd));
  }
  REQUIRE(::kill(victim, SIGKILL) == 0);
  REQUIRE(eventually([&] { return !sumOfOnes(*session).ok(); }, seconds(5)));
  REQUIRE(session->awaitWorkers().wait(kDeadline).ok());
  CHECK(sumOfOnes(*session).value_or(0) == 8);
  idle.clear();
  // One that comes before the daemon has seen the others go may still be refused.
  CHECK(DaemonClient(daemon.socket()).waitUntilHealthy(std::chrono::steady_clock::now() + kDeadline).ok());
}

TEST_CASE("a full disk costs lines of the log, and nothing else") {
  const TempDir folder;
  const std::string log = folder.file("dtorchd.log");
  DaemonFixture daemon(
      {.flags = {"--log.file", log, "--log.level", "debug"}, .prefix = withMount(folder.path(), "64k")});
  const auto session = daemon.connect();
  CHECK(sumOfOnes(*session).value_or(0) == 8);
  fail(*session, 20);
  CHECK(crosses(*session, 1 << 20));
  CHECK(daemon.status().health() == v1::HEALTH_HEALTHY);
  // Seen from outside: the daemon's own file system.
  const std::filesystem::path inside = absl::StrCat("/proc/", daemon.pid(), "/root", log);
  const std::uintmax_t full = std::filesystem::file_size(inside);
  REQUIRE(std::filesystem::remove(inside.parent_path() / "filler"));
  fail(*session, 20);
  CHECK(eventually([&] { return std::filesystem::file_size(inside) > full; }, seconds(5)));
  CHECK(sumOfOnes(*session).value_or(0) == 8);
}

TEST_CASE("a full /dev/shm is nobody's concern") {
  DaemonFixture daemon({.prefix = withMount("/dev/shm", "64k")});
  const auto session = daemon.connect();
  REQUIRE(std::filesystem::exists(absl::StrCat("/proc/", daemon.pid(), "/root/dev/shm/filler")));
  CHECK(sumOfOnes(*session).value_or(0) == 8);
  CHECK(crosses(*session, 16 << 20));
}

}  // namespace dtorch
