#include "daemon/daemon_config.h"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/catch.h"

namespace dtorch {
namespace {

DaemonConfig loadOrFail(std::vector<std::string> arguments, std::map<std::string, std::string> environment = {}) {
  const auto loaded = loadDaemonConfig({std::move(arguments), std::move(environment)});
  INFO(loaded.status().ToString());
  REQUIRE(loaded.ok());
  return loaded->config;
}

std::string messageOf(std::vector<std::string> arguments, std::map<std::string, std::string> environment = {}) {
  const auto loaded = loadDaemonConfig({std::move(arguments), std::move(environment)});
  REQUIRE(loaded.status().code() == absl::StatusCode::kInvalidArgument);
  return std::string(loaded.status().message());
}

TEST_CASE("without any input the daemon has two worker processes that share the cores") {
  const DaemonConfig config = loadOrFail({});
  CHECK(config.workersCount == 2);
  CHECK(config.workersMode == WorkerMode::kProcess);
  CHECK(config.workersThreads == std::max<std::int64_t>(1, std::thread::hardware_concurrency() / 2));
  CHECK(absl::EndsWith(config.workerBinary, "/dtorch-worker"));
  CHECK(config.listenTcp.empty());
}

TEST_CASE("the runtime directory is systemd's, else the user's, else one in /tmp; the socket lies in it") {
  const std::map<std::string, std::string> both = {{"RUNTIME_DIRECTORY", "/run/dtorch"}, {"XDG_RUNTIME_DIR", "/run/u"}};
  CHECK(loadOrFail({}, both).runtimeDir == "/run/dtorch");
  CHECK(loadOrFail({}, {{"XDG_RUNTIME_DIR", "/run/u"}}).runtimeDir == "/run/u/dtorch");
  CHECK(loadOrFail({}).runtimeDir == absl::StrCat("/tmp/dtorch-", ::getuid()));
  CHECK(loadOrFail({"--runtime.dir=/here"}, both).runtimeDir == "/here");
  CHECK(loadOrFail({"--runtime.dir=/here"}, both).listenSocket == "/here/dtorchd.sock");
  CHECK(loadOrFail({"--runtime.dir=/here", "--listen.socket=/there"}, both).listenSocket == "/there");
}

TEST_CASE("a socket path of 107 bytes is allowed, one of 108 is an error with the number") {
  const std::string longest = "/" + std::string(kMaxSocketPath - 1, 'x');
  CHECK(loadOrFail({"--listen.socket=" + longest}).listenSocket == longest);
  CHECK(absl::StrContains(messageOf({"--listen.socket=" + longest + "x"}),
                          "(flag --listen.socket): the path has 108 bytes, a Unix socket holds at most 107"));
  CHECK(absl::StrContains(messageOf({}, {{"DTORCH_RUNTIME_DIR", longest}}), "the path has 120 bytes"));
}

TEST_CASE("validation of all sessions is off unless asked for") {
  CHECK_FALSE(loadOrFail({}).sessionValidate);
  CHECK(loadOrFail({"--session.validate"}).sessionValidate);
  CHECK(loadOrFail({}, {{"DTORCH_SESSION_VALIDATE", "true"}}).sessionValidate);
}

TEST_CASE("silence is longer than the interval of heartbeats") {
  CHECK(messageOf({"--heartbeat.interval=5s"}) ==
        "heartbeat.silent_after = \"4000ms\" (default): it must be longer than heartbeat.interval, which is 5000ms "
        "(flag --heartbeat.interval)");
  CHECK(loadOrFail({"--heartbeat.interval=3s"}).heartbeatInterval == std::chrono::seconds(3));
}

TEST_CASE("threads of a worker: given, or cores by workers and at least one") {
  CHECK(loadOrFail({"--workers.threads=7"}).workersThreads == 7);
  CHECK(loadOrFail({"--workers.count=1000"}).workersThreads == 1);
}

TEST_CASE("the variable that clients use is none of the daemon's keys, and no error") {
  CHECK(loadOrFail({}, {{"DTORCH_SOCKET", "/elsewhere"}}).listenSocket != "/elsewhere");
}

}  // namespace
}  // namespace dtorch
