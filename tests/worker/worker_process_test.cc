// The real dtorch-worker: what ends it, and with which exit code.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "proto/topics.h"
#include "tests/catch.h"
#include "tests/worker/worker_driver.h"

namespace dtorch {
namespace {

constexpr int kPatienceMs = 30000;

struct Pipe {
  Pipe() { REQUIRE(pipe2(ends.data(), O_CLOEXEC) == 0); }
  ~Pipe() {
    closeRead();
    closeWrite();
  }
  void closeRead() { closeEnd(0); }
  void closeWrite() { closeEnd(1); }
  int read() const { return ends[0]; }
  int write() const { return ends[1]; }

 private:
  void closeEnd(std::size_t end) {
    if (ends[end] >= 0) close(ends[end]);
    ends[end] = -1;
  }
  std::array<int, 2> ends{-1, -1};
};

std::vector<std::string> workerArguments(const WorkerDriver& driver) {
  return {
      DTORCH_WORKER,           "--rank",    "0", "--world-size", "1", "--frames", driver.frameEndpoint(), "--reports",
      driver.reportEndpoint(), "--threads", "1"};
}

// A process that leads its own group, with `inherited` as its descriptor 3, stderr as `log`.
class Child {
 public:
  Child(std::vector<std::string> arguments, int inherited, int log) {
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    if (inherited >= 0) posix_spawn_file_actions_adddup2(&actions, inherited, 3);
    if (log >= 0) posix_spawn_file_actions_adddup2(&actions, log, 2);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setpgroup(&attributes, 0);
    const int error = posix_spawn(&pid_, argv[0], &actions, &attributes, argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    REQUIRE(error == 0);
  }
  ~Child() {
    if (!reaped_) {
      kill(-pid_, SIGKILL);
      waitpid(pid_, &status_, 0);
    }
  }
  pid_t pid() const { return pid_; }
  // Its wait status; fails the test if it does not end in time.
  int wait() {
    const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
    pollfd ended{pidfd, POLLIN, 0};
    const int ready = poll(&ended, 1, kPatienceMs);
    close(pidfd);
    REQUIRE(ready == 1);
    waitpid(pid_, &status_, 0);
    reaped_ = true;
    return status_;
  }

 private:
  pid_t pid_ = 0;
  int status_ = 0;
  bool reaped_ = false;
};

v1::WorkerCommand shutdownCommand() {
  v1::WorkerCommand command;
  command.mutable_shutdown();
  return command;
}

}  // namespace

TEST_CASE("a worker process runs an operator and exits with 0 after Shutdown") {
  WorkerDriver driver(WorkerDriver::Transport::kIpc);
  Child worker(workerArguments(driver), -1, -1);
  driver.awaitWorkers({0});
  driver.join(1, {0});
  v1::Plan full = makePlan(1, cpuMesh({1}), 0, "aten::full");
  addKernel(full, "aten::full",
            {std::vector<std::int64_t>{2}, 1.5, DType::kFloat64, Value(), DeviceArg{"cpu"}, Value()});
  full.add_outputs(0);
  driver.send(1, {define(full), run(1, {}, 5)});
  const std::string bytes = driver.fetch(1, 0, 5).inline_bytes();
  REQUIRE(bytes.size() == 16);
  std::array<double, 2> values{};
  std::memcpy(values.data(), bytes.data(), sizeof values);
  CHECK(values == std::array<double, 2>{1.5, 1.5});
  driver.sendTo(0, shutdownCommand());
  const int status = worker.wait();
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("SIGTERM ends a worker in order") {
  WorkerDriver driver(WorkerDriver::Transport::kIpc);
  Child worker(workerArguments(driver), -1, -1);
  driver.awaitWorkers({0});
  kill(worker.pid(), SIGTERM);
  const int status = worker.wait();
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  driver.awaitSubscription(workerTopic(0, 0), false);
}

TEST_CASE("WIRE-1: a gap in the sequence ends the process with an error that says so") {
  WorkerDriver driver(WorkerDriver::Transport::kIpc);
  Pipe log;
  std::string text;
  {
    Child worker(workerArguments(driver), -1, log.write());
    log.closeWrite();
    driver.awaitWorkers({0});
    driver.join(1, {0});
    driver.sequence(1) += 5;
    driver.send(1, {});
    CHECK_THAT(driver.awaitFault(0).error().message(), Catch::Contains("to 6"));
    const int status = worker.wait();
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 1);
    std::array<char, 4096> buffer{};
    for (ssize_t got; (got = ::read(log.read(), buffer.data(), buffer.size())) > 0;) {
      text.append(buffer.data(), static_cast<std::size_t>(got));
    }
  }
  CHECK_THAT(text, Catch::Contains("error worker 0: cannot go on: topic g1/ went from sequence 0 to 6"));
}

TEST_CASE("a worker whose daemon was killed by kill -9 ends at once") {
  WorkerDriver driver(WorkerDriver::Transport::kIpc);
  // The daemon's part: it holds the pipe's write end as descriptor 3, and dies without a word.
  Pipe lifetime;
  Child daemon({"/bin/sleep", "1000"}, lifetime.write(), -1);
  std::vector<std::string> arguments = workerArguments(driver);
  arguments.insert(arguments.end(), {"--lifetime-fd", "3"});
  Child worker(arguments, lifetime.read(), -1);
  lifetime.closeRead();
  lifetime.closeWrite();
  driver.awaitWorkers({0});
  kill(daemon.pid(), SIGKILL);
  const int status = worker.wait();
  CHECK(WIFSIGNALED(status));  // it took its process group with it
  CHECK(WTERMSIG(status) == SIGKILL);
}

TEST_CASE("a command line that makes no sense is refused") {
  WorkerDriver driver(WorkerDriver::Transport::kIpc);
  std::vector<std::string> arguments = workerArguments(driver);
  int expected = 0;
  SECTION("an unknown flag") {
    arguments.emplace_back("--frobnicate");
    expected = 109;
  }
  SECTION("an unknown device") {
    arguments.insert(arguments.end(), {"--device", "tpu"});
    expected = 1;
  }
  SECTION("--version alone is fine") { arguments = {DTORCH_WORKER, "--version"}; }
  Child worker(arguments, -1, -1);
  const int status = worker.wait();
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == expected);
}

}  // namespace dtorch
