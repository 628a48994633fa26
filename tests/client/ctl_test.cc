#include "client/ctl/ctl.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>
#include <vector>

#include "client/ctl/report.h"
#include "tests/catch.h"
#include "tests/client/fake_daemon.h"

namespace dtorch {
namespace {

using namespace std::chrono_literals;
using Catch::Matchers::Contains;

struct Outcome {
  int exitCode;
  std::string out;
  std::string err;
};

Outcome run(const std::string& socket, std::vector<const char*> words) {
  words.insert(words.begin(), {"dtorchctl", "--socket", socket.c_str()});
  std::ostringstream out;
  std::ostringstream err;
  const int exitCode = runCtl(static_cast<int>(words.size()), words.data(), out, err);
  return {exitCode, out.str(), err.str()};
}

v1::StatusReply exampleStatus(v1::Health health) {
  v1::StatusReply status;
  status.set_version("0.1.0");
  status.set_health(health);
  status.set_pid(4711);
  status.set_uptime_ms(3'723'000);
  status.set_resident_bytes(85 << 20);
  status.set_operators_done(123456);
  status.set_operators_failed(7);
  status.set_unobserved_errors(2);
  for (int rank = 0; rank < 2; ++rank) {
    v1::WorkerStatus* worker = status.add_workers();
    worker->set_rank(rank);
    worker->set_pid(4712 + rank);
    worker->set_device("cpu");
    worker->set_state(rank == 0 ? "ready" : "dead");
    worker->set_heartbeat_age_ms(rank == 0 ? 300 : -1);
    worker->set_queued(5);
    worker->set_done(1000);
    worker->set_resident_bytes(100 << 20);
    worker->set_tensor_bytes(1536);
    worker->set_allocated_bytes(3 << 20);
    worker->set_peak_allocated_bytes(7 << 20);
    worker->set_restarts(1);
    if (rank == 1) worker->set_detail("killed by signal 9\n\x1b[31m");
  }
  v1::SessionStatus* session = status.add_sessions();
  session->set_id(3);
  session->set_client("digits (dtorch-cpp 0.1.0 pid 99)");
  session->set_uid(1000);
  session->set_pid(99);
  session->set_age_ms(65'000);
  session->set_tensors(17);
  session->set_tensor_bytes(2048);
  session->set_operators(42);
  session->set_failed(1);
  session->set_futures(4);
  return status;
}

TEST_CASE("The exit code tells the daemon's health") {
  const auto [health, exitCode] = GENERATE(table<v1::Health, int>({{v1::HEALTH_HEALTHY, kExitHealthy},
                                                                   {v1::HEALTH_STARTING, kExitDegraded},
                                                                   {v1::HEALTH_DEGRADED, kExitDegraded},
                                                                   {v1::HEALTH_STOPPING, kExitDegraded}}));
  FakeDaemon::Options options;
  options.status = exampleStatus(health);
  FakeDaemon daemon(options);
  for (const char* command : {"status", "workers", "sessions"})
    CHECK(run(daemon.socket(), {command}).exitCode == exitCode);
}

TEST_CASE("A daemon that is not there, does not answer or refuses is exit code 2, told within the time limit") {
  const auto start = std::chrono::steady_clock::now();
  SECTION("not there") {
    const Outcome outcome = run("/tmp/dtorch-no-such-daemon.sock", {"status"});
    CHECK(outcome.exitCode == kExitUnreachable);
    CHECK(outcome.out.empty());
    CHECK_THAT(outcome.err, Contains("unix:/tmp/dtorch-no-such-daemon.sock"));
    CHECK(run("/tmp/dtorch-no-such-daemon.sock", {"stop"}).exitCode == kExitUnreachable);
  }
  SECTION("silent") {
    FakeDaemon::Options options;
    options.statusDelay = 10s;
    FakeDaemon daemon(options);
    const Outcome outcome = run(daemon.socket(), {"--timeout", "0.2", "status"});
    CHECK(outcome.exitCode == kExitUnreachable);
    CHECK_THAT(outcome.err, Contains("did not answer in time"));
  }
  SECTION("of another protocol") {
    FakeDaemon::Options options;
    options.protocol = kProtocolVersion + 1;
    FakeDaemon daemon(options);
    CHECK(run(daemon.socket(), {"status"}).exitCode == kExitUnreachable);
  }
  CHECK(std::chrono::steady_clock::now() - start < 5s);
}

TEST_CASE("status shows everything in aligned columns") {
  FakeDaemon::Options options;
  options.status = exampleStatus(v1::HEALTH_DEGRADED);
  FakeDaemon daemon(options);
  CHECK(
      run(daemon.socket(), {"status"}).out ==
      "dtorchd 0.1.0 is degraded: pid 4711, up 1 h 2 min, 85.0 MiB resident\n"
      "operators: 123456 done, 7 failed, 2 failures that no client has been told of\n"
      "\n"
      "WORKER  STATE   PID  DEVICE  HEARTBEAT  QUEUED  DONE     MEMORY  TENSORS  ALLOCATED     PEAK  RESTARTS  DETAIL\n"
      "     0  ready  4712  cpu     0.3 s ago       5  1000  100.0 MiB  1.5 KiB    3.0 MiB  7.0 MiB         1\n"
      "     1  dead   4713  cpu          none       5  1000  100.0 MiB  1.5 KiB    3.0 MiB  7.0 MiB         1  killed "
      "by signal 9  [31m\n"
      "\n"
      "SESSION  CLIENT                             UID  PID    AGE  TENSORS    BYTES  OPERATORS  FAILED  WAITING\n"
      "      3  digits (dtorch-cpp 0.1.0 pid 99)  1000   99  1 min       17  2.0 KiB         42       1        4\n");
}

TEST_CASE("--json prints the same for programs") {
  FakeDaemon::Options options;
  options.status = exampleStatus(v1::HEALTH_HEALTHY);
  FakeDaemon daemon(options);
  const Outcome outcome = run(daemon.socket(), {"status", "--json"});
  CHECK(outcome.exitCode == kExitHealthy);
  const auto json = nlohmann::json::parse(outcome.out);
  CHECK(json["health"] == "healthy");
  CHECK(json["uptime_ms"] == 3'723'000);
  CHECK(json["workers"].size() == 2);
  CHECK(json["workers"][1]["state"] == "dead");
  CHECK(json["workers"][0]["allocated_bytes"] == 3 << 20);
  CHECK(json["workers"][0]["peak_allocated_bytes"] == 7 << 20);
  CHECK(json["workers"][1]["detail"] == "killed by signal 9\n\x1b[31m");
  CHECK(json["sessions"][0]["operators"] == 42);
  CHECK(nlohmann::json::parse(run(daemon.socket(), {"--json", "workers"}).out) == json["workers"]);
  CHECK(nlohmann::json::parse(run(daemon.socket(), {"--json", "sessions"}).out) == json["sessions"]);
  const auto error = nlohmann::json::parse(run("/tmp/dtorch-no-such-daemon.sock", {"--json", "status"}).out);
  CHECK(error["error"]["code"] == "UNAVAILABLE");
}

TEST_CASE("version works with and without a daemon") {
  FakeDaemon::Options options;
  options.status = exampleStatus(v1::HEALTH_HEALTHY);
  FakeDaemon daemon(options);
  CHECK(run(daemon.socket(), {"version"}).out == "dtorchctl 0.1.0, protocol 2\ndtorchd 0.1.0, pid 4711\n");
  const Outcome alone = run("/tmp/dtorch-no-such-daemon.sock", {"version", "--json"});
  CHECK(alone.exitCode == 0);
  CHECK(nlohmann::json::parse(alone.out)["dtorchd"].is_null());
}

TEST_CASE("status --wait waits until the daemon is healthy") {
  FakeDaemon::Options options;
  options.status = exampleStatus(v1::HEALTH_HEALTHY);
  FakeDaemon daemon(options);
  CHECK(run(daemon.socket(), {"status", "--wait", "10"}).exitCode == kExitHealthy);
  CHECK(run("/tmp/dtorch-no-such-daemon.sock", {"status", "--wait", "0.2"}).exitCode == kExitUnreachable);
}

TEST_CASE("stop waits for the end of the daemon's process") {
  pid_t pid = 0;
  const char* arguments[] = {"sleep", "1000", nullptr};
  REQUIRE(::posix_spawnp(&pid, "sleep", nullptr, nullptr, const_cast<char**>(arguments), environ) == 0);
  FakeDaemon::Options options;
  options.status = exampleStatus(v1::HEALTH_HEALTHY);
  options.status.set_pid(pid);
  FakeDaemon daemon(options);
  const Outcome late = run(daemon.socket(), {"--timeout", "0.3", "stop"});
  CHECK(late.exitCode == kExitDegraded);
  CHECK_THAT(late.out, Contains("not gone yet"));
  CHECK(daemon.stopRequested());
  CHECK(daemon.drainMs() == 0);
  CHECK(run(daemon.socket(), {"--timeout", "0.3", "drain", "--grace", "2.5"}).exitCode == kExitDegraded);
  CHECK(daemon.drainMs() == 2500);
  ::kill(pid, SIGKILL);
  CHECK(run(daemon.socket(), {"stop"}).out == "dtorchd (pid " + std::to_string(pid) + ") has stopped\n");
  ::waitpid(pid, nullptr, 0);
}

TEST_CASE("stuck --stacks shows threads in the same place together, and says which workers have told nothing") {
  FakeDaemon::Options options;
  options.status = exampleStatus(v1::HEALTH_DEGRADED);
  v1::WorkerStatus* worker = options.status.mutable_workers(0);
  worker->set_stacks_age_ms(0);
  for (int tid : {11, 12, 13}) {
    v1::ThreadStack* stack = worker->add_stacks();
    stack->set_tid(tid);
    stack->set_name(tid == 13 ? "deaf" : "pool\x1b");
    if (tid == 13) continue;
    stack->add_frames("poll");
    stack->add_frames("run()");
  }
  FakeDaemon daemon(options);
  const Outcome outcome = run(daemon.socket(), {"stuck", "--stacks"});
  CHECK_THAT(outcome.out, Contains("  pool  (11), pool  (12)\n    poll\n    run()\n"));
  CHECK_THAT(outcome.out, Contains("  deaf (13)\n    blocks signals, or does not answer\n"));
  CHECK_THAT(outcome.out, Contains("worker 1, pid 4713, dead: its stacks have not come"));
  const nlohmann::json json = nlohmann::json::parse(run(daemon.socket(), {"--json", "stuck", "--stacks"}).out);
  CHECK(json["stacks"][0]["threads"][1]["frames"] == nlohmann::json{"poll", "run()"});
  CHECK(nlohmann::json::parse(run(daemon.socket(), {"--json", "stuck"}).out)["workers"].size() == 2);
}

TEST_CASE("sessions that were lost are counted") {
  v1::StatusReply status = exampleStatus(v1::HEALTH_HEALTHY);
  CHECK(formatSummary(status).find("lost") == std::string::npos);
  status.set_sessions_lost(3);
  CHECK_THAT(formatSummary(status), Contains("sessions lost: 3"));
  CHECK(summaryJson(status)["sessions_lost"] == 3);
}

TEST_CASE("A wrong command line is exit code 2, help is 0") {
  CHECK(run("x", {}).exitCode == kExitUnreachable);
  CHECK(run("x", {"dance"}).exitCode == kExitUnreachable);
  CHECK(run("x", {"status", "--timeout", "-1"}).exitCode == kExitUnreachable);
  const Outcome help = run("x", {"--help"});
  CHECK(help.exitCode == 0);
  for (const char* command : {"status", "workers", "sessions", "operators", "stuck", "stop", "drain", "version"})
    CHECK_THAT(help.out, Contains(command));
}

TEST_CASE("Names from the wire cannot garble the table") {
  v1::StatusReply status = exampleStatus(v1::HEALTH_HEALTHY);
  status.mutable_sessions(0)->set_client("evil\x1b[2J\n\t");
  CHECK(formatSessions(status).find('\x1b') == std::string::npos);
  status.mutable_sessions(0)->set_client("Zoë");
  CHECK(formatTable({"A", "B"}, {{"Zoë", "1"}, {"abcd", "2"}}) == "A     B\nZoë   1\nabcd  2\n");
  CHECK_THAT(formatSessions(status), Contains("Zoë"));
}

}  // namespace
}  // namespace dtorch
