// Starts and ends of daemon and workers, wanted and not: who is told what, how soon, and what is left.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cpp/operators.h"
#include "client/cpp/session.h"
#include "tests/catch.h"
#include "tests/process/daemon_fixture.h"

namespace dtorch {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kDeadline = std::chrono::seconds(20);

// Whether the process is there and no zombie.
bool isRunning(std::int64_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.rfind("State:", 0) == 0) return line.find('Z') == std::string::npos;
  }
  return false;
}

std::map<std::string, std::uintmax_t> filesWithSizes(const std::string& folder) {
  std::map<std::string, std::uintmax_t> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    files[entry.path().filename()] = entry.is_regular_file() ? entry.file_size() : 0;
  }
  return files;
}

// Of all its threads.
int childrenOfThis() {
  int count = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream list(thread.path() / "children");
    for (pid_t child = 0; list >> child;) ++count;
  }
  return count;
}

// A daemon beside the fixture's own, with two workers.
pid_t startDaemon(const std::string& folder) {
  return startProgram({binFolder() + "/dtorchd", "--runtime.dir", folder}, "/dev/null");
}

// A product that takes about a second on one thread.
Tensor slow(Session& session) {
  const Tensor x = session.call("aten::ones", {Sizes{1024, 1024}});
  Tensor y = x;
  for (int i = 0; i < 40; ++i) y = session.call("aten::mm", {y, x});
  return y;
}

TEST_CASE("workers as processes and as threads compute the same") {
  DaemonFixture::Options options;
  options.workers = GENERATE(1, 3);
  options.threads = GENERATE(false, true);
  DaemonFixture daemon(options);
  CHECK(sumOfOnes(*daemon.connect()).value_or(0) == 8.0);
  daemon.stop();
}

TEST_CASE("the first operator counts, however early it is sent") {
  for (int round = 0; round < 5; ++round) {
    DaemonFixture daemon;
    CHECK(sumOfOnes(*daemon.connect()).value_or(0) == 8.0);
  }
}

TEST_CASE("a session may end while other threads call, wait and release") {
  DaemonFixture daemon;
  for (int round = 0; round < 5; ++round) {
    auto session = daemon.connect();
    const std::vector<float> one = {1};
    const Tensor x = session->put(HostView::of(one, {1}), session->mesh());
    REQUIRE(x.get().wait(kDeadline).ok());
    std::atomic<int> ended = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&ended, tensor = x, i] {
        absl::Status status;
        while (!absl::IsUnavailable(status)) {
          const Tensor y = add(tensor, tensor);
          if (i == 0) y.get().poll();
          if (i == 1) add(y, tensor);  // released at once
          if (i < 3) status = y.get().wait(std::chrono::milliseconds(i)).status();
          if (i == 3) status = y.get().get().status();
        }
        ++ended;
      });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    session.reset();
    for (std::thread& thread : threads) thread.join();
    CHECK(ended == 4);
  }
  CHECK(sumOfOnes(*daemon.connect()).value_or(0) == 8.0);
}

TEST_CASE("a file in the place of a socket stays, and is named") {
  const std::string name = GENERATE("frames.sock", "reports.sock", "supervisor.sock", "dtorchd.sock");
  std::string folder = "/tmp/dtorch-test-file-XXXXXX";
  REQUIRE(::mkdtemp(folder.data()) != nullptr);
  const std::string path = folder + "/" + name;
  std::ofstream(path) << "mine";
  const ProgramResult result =
      runProgram({binFolder() + "/dtorchd", "--runtime.dir", folder}, std::chrono::seconds(60));
  CHECK(result.exitCode != 0);
  CHECK(result.output.find(name) != std::string::npos);
  std::string content;
  std::ifstream(path) >> content;
  CHECK(content == "mine");
  std::filesystem::remove_all(folder);
}

TEST_CASE("the workers that are left drop what is released") {
  DaemonFixture daemon(
      {.workers = 2,
       .flags = {"--heartbeat.interval", "100ms", "--heartbeat.silent_after", "10s", "--workers.restart_limit", "0"}});
  const auto session = daemon.connect();
  const std::vector<float> values(1 << 20, 1);
  const auto heldBy = [&](Rank rank) {
    const v1::StatusReply status = daemon.status();
    return status.workers(rank).tensor_bytes();
  };
  {
    std::vector<Tensor> tensors;
    for (int i = 0; i < 4; ++i) tensors.push_back(session->put(HostView::of(values, {1 << 20}), session->mesh()));
    REQUIRE(session->synchronize().wait(kDeadline).ok());
    REQUIRE(eventually([&] { return heldBy(0) >= 16 << 20; }, std::chrono::seconds(5)));
    ::kill(static_cast<pid_t>(daemon.status().workers(1).pid()), SIGKILL);
    REQUIRE(eventually([&] { return daemon.status().health() == v1::HEALTH_DEGRADED; }, std::chrono::seconds(5)));
    CHECK(heldBy(0) >= 16 << 20);
    CHECK(daemon.status().workers(1).queued() == 0);
  }
  CHECK_FALSE(session->synchronize().wait(kDeadline).ok());  // sends the releases; what was on worker 1 is lost
  CHECK(eventually([&] { return heldBy(0) < 1 << 20; }, std::chrono::seconds(5)));
}

TEST_CASE("a killed worker fails what needs it within a second, by name") {
  DaemonFixture daemon({.flags = {"--workers.restart_limit", "0"}});
  const auto session = daemon.connect();
  CHECK(sumOfOnes(*session).value_or(0) == 8.0);
  const std::int64_t victim = daemon.status().workers(1).pid();
  const Future<HostTensor> pending = slow(*session).redistribute({Placement::shard(0)}).get();
  CHECK_FALSE(pending.poll());
  const auto killed = Clock::now();
  REQUIRE(kill(static_cast<pid_t>(victim), SIGKILL) == 0);
  const auto result = pending.wait(kDeadline);
  CHECK(Clock::now() - killed < std::chrono::seconds(1));
  CHECK(failureKind(result.status()) == FailureKind::kWorkerLost);
  const std::string message(result.status().message());
  CHECK(message.find("worker 1") != std::string::npos);
  CHECK(message.find(std::to_string(victim)) != std::string::npos);
  CHECK(message.find("SIGKILL") != std::string::npos);
  // The loss has been told: not again; new work fails at once; the daemon says how it is.
  CHECK(session->synchronize().wait(kDeadline).ok());
  const auto next = session->call("aten::ones", {Sizes{2}}).get().wait(kDeadline);
  CHECK(failureKind(next.status()) == FailureKind::kWorkerLost);
  const v1::StatusReply status = daemon.status();
  CHECK(status.health() == v1::HEALTH_DEGRADED);
  CHECK(status.workers(1).state() == "failed");
  // A mesh without it goes on.
  const auto alone = session->mesh({0});
  REQUIRE(alone.ok());
  const auto ones = session->call("aten::ones", {Sizes{2}}, {.mesh = *alone}).get().wait(kDeadline);
  CHECK(ones.ok());
  daemon.stop();
}

TEST_CASE("a collective that was given up costs what needs it, and no later one") {
  DaemonFixture daemon({.flags = {"--comm.timeout", "1s"}});
  const auto session = daemon.connect();
  const auto gathered = [](Session& own) {
    const std::vector<float> values = {1, 2, 3, 4};
    return own.put(HostView::of(values, {4}), own.mesh(), {Placement::shard(0)}).get().wait(kDeadline);
  };
  REQUIRE(gathered(*session).ok());
  const auto stopped = static_cast<pid_t>(daemon.status().workers(1).pid());
  REQUIRE(kill(stopped, SIGSTOP) == 0);
  const absl::Status late = gathered(*session).status();
  REQUIRE(kill(stopped, SIGCONT) == 0);
  CHECK(absl::IsDeadlineExceeded(late));
  CHECK(std::string(late.message()).find("rank 1") != std::string::npos);
  // What was on its way among the old groups may fail; then all is as before, for everybody.
  CHECK(eventually([&] { return gathered(*session).ok(); }, std::chrono::seconds(5)));
  CHECK(gathered(*daemon.connect()).ok());
  CHECK(gathered(*session).ok());
  CHECK(daemon.status().health() == v1::HEALTH_HEALTHY);

  // A group that could not be made, because one of its ranks was busy with somebody else's work.
  const auto other = daemon.connect();
  const auto alone = other->mesh({0});
  REQUIRE(alone.ok());
  Tensor x = other->call("aten::ones", {Sizes{1200, 1200}}, {.mesh = *alone});
  for (int i = 0; i < 60; ++i) x = other->call("aten::mm", {x, x});
  const auto reversed = session->mesh({1, 0});
  REQUIRE(reversed.ok());
  const std::vector<float> pair = {1, 2};
  const auto first = session->put(HostView::of(pair, {2}), *reversed, {Placement::shard(0)}).get().wait(kDeadline);
  INFO(first.status());
  CHECK((first.ok() || absl::IsDeadlineExceeded(first.status()) || absl::IsAborted(first.status())));
  REQUIRE(x.get().wait(kDeadline).ok());
  const auto again = [&] {
    return session->put(HostView::of(pair, {2}), *reversed, {Placement::shard(0)}).get().wait(kDeadline).ok();
  };
  CHECK(eventually(again, std::chrono::seconds(5)));
  CHECK(gathered(*session).ok());
}

TEST_CASE("workers end with a daemon that is killed, and the next one just starts") {
  DaemonFixture daemon;
  const auto session = daemon.connect();
  std::vector<std::int64_t> workers;
  const v1::StatusReply before = daemon.status();
  for (const v1::WorkerStatus& worker : before.workers()) workers.push_back(worker.pid());
  const Future<HostTensor> pending = slow(*session).get();
  CHECK_FALSE(pending.poll());
  daemon.kill(SIGKILL);
  CHECK(absl::IsUnavailable(pending.wait(kDeadline).status()));
  for (const std::int64_t worker : workers) {
    CHECK(eventually([&] { return !isRunning(worker); }, std::chrono::seconds(5)));
  }
  REQUIRE(daemon.waitForEnd(std::chrono::seconds(5)).has_value());
  const std::string bin = binFolder();
  const ProgramResult again = runProgram(
      {"/bin/sh", "-c",
       bin + "/dtorchd --runtime.dir " + daemon.folder() + " & " + bin + "/dtorchctl --socket " + daemon.socket() +
           " status --wait 20 && " + bin + "/dtorchctl --socket " + daemon.socket() + " stop && wait $!"},
      std::chrono::seconds(40));
  INFO(again.output);
  CHECK(again.exitCode == 0);
  CHECK(again.output.find("is healthy") != std::string::npos);
}

TEST_CASE("20 daemons killed with SIGKILL leave shared memory as it was, others' too") {  // vllm#54002, sglang#40723
  // A name that a sweep by prefix would take.
  const std::filesystem::path stranger = absl::StrCat("/dev/shm/", kStrangersPrefix, getpid());
  std::ofstream(stranger) << "not yours";
  const std::string folder = std::filesystem::temp_directory_path() / ("dtorch-killed-" + std::to_string(getpid()));
  {
    DaemonFixture live;
    const auto session = live.connect();
    const std::vector<float> values(1 << 20, 3);
    const Tensor kept = session->put(HostView::of(values, {1 << 20}), session->mesh(), {Placement::shard(0)});
    REQUIRE(session->synchronize().get().ok());
    const auto names = filesWithSizes("/dev/shm");
    const std::uint64_t memory = sharedMemoryInUse();
    for (int round = 0; round < 20; ++round) {
      INFO("round " << round);
      const pid_t daemon = startDaemon(folder);
      const ProgramResult ready = runProgram(
          {binFolder() + "/dtorchctl", "--socket", folder + "/dtorchd.sock", "status", "--wait", "30"}, kDeadline * 2);
      INFO(ready.output);
      REQUIRE(ready.exitCode == 0);
      const auto other = Session::connect({folder + "/dtorchd.sock", std::chrono::seconds(10), "test"});
      REQUIRE(other.ok());
      const std::vector<float> many(8 << 20, 1);
      const Tensor large = (*other)->put(HostView::of(many, {8 << 20}), (*other)->mesh());
      REQUIRE((*other)->synchronize().get().ok());
      REQUIRE(kill(daemon, SIGKILL) == 0);
      // Its workers end with it, and are this process's children then.
      CHECK(eventually(
          [] {
            while (waitpid(-1, nullptr, WNOHANG) > 0) {
            }
            return childrenOfThis() == 1;
          },
          std::chrono::seconds(10)));
    }
    CHECK(filesWithSizes("/dev/shm") == names);
    CHECK(sharedMemoryInUse() < memory + (std::uint64_t{400} << 20));  // others use it too; 20 leaks are 1,280 MiB
    CHECK(*session->call("aten::sum", {kept}).get().wait(kDeadline)->item() == 3 << 20);
    CHECK(sumOfOnes(*session).value_or(0) == 8.0);
  }
  std::string text;
  std::getline(std::ifstream(stranger), text);
  CHECK(text == "not yours");
  std::filesystem::remove(stranger);
  std::filesystem::remove_all(folder);
}

TEST_CASE("a second daemon on the same address ends, and names the first") {
  DaemonFixture daemon;
  const ProgramResult second =
      runProgram({binFolder() + "/dtorchd", "--runtime.dir", daemon.folder()}, std::chrono::seconds(20));
  CHECK(second.exitCode != 0);
  CHECK(second.output.find(std::to_string(daemon.pid())) != std::string::npos);
  CHECK(sumOfOnes(*daemon.connect()).value_or(0) == 8.0);
}

TEST_CASE("a worker that does not come up is named, with what it said") {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("dtorch-lifecycle-" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const std::filesystem::path broken = folder / "worker";
  std::ofstream(broken) << "#!/bin/sh\necho no luck today\nexec sleep 60\n";
  std::filesystem::permissions(broken, std::filesystem::perms::owner_all);
  const ProgramResult result = runProgram({binFolder() + "/dtorchd", "--runtime.dir", (folder / "run").string(),
                                           "--worker.binary", broken.string(), "--workers.start_timeout", "1s"},
                                          std::chrono::seconds(30));
  CHECK(result.exitCode == 1);
  CHECK(result.output.find("worker 0") != std::string::npos);
  CHECK(result.output.find("no luck today") != std::string::npos);
  std::filesystem::remove_all(folder);
}

TEST_CASE("the programs of the README print what it says") {
  DaemonFixture daemon;
  const ProgramResult hello = runProgram({binFolder() + "/hello", daemon.socket()}, kDeadline);
  CHECK(hello.exitCode == 0);
  CHECK(hello.output == "25 30\n");
  CHECK(runProgram({binFolder() + "/dtorchctl", "--socket", daemon.socket(), "status"}, kDeadline).exitCode == 0);
}

}  // namespace
}  // namespace dtorch
