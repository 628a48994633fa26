// The supervisor with real processes (shell scripts as the worker binary) and with a fake launcher.
#include "daemon/supervisor/supervisor.h"

#include <fcntl.h>
#include <grpcpp/create_channel.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/file_descriptor.h"
#include "daemon/supervisor/process_launcher.h"
#include "dtorch/v1/worker.grpc.pb.h"
#include "proto/version.h"
#include "spdlog/spdlog.h"
#include "tests/catch.h"
#include "tests/daemon/rpc_processes.h"

namespace dtorch {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

std::int64_t since(Clock::time_point start) {
  return std::chrono::duration_cast<milliseconds>(Clock::now() - start).count();
}

/// What onExit was told. Thread: safe.
class Exits {
 public:
  void add(const WorkerExit& exit) {
    const std::lock_guard lock(mutex_);
    all_.push_back(exit);
    changed_.notify_all();
  }
  /// The detail of the `count`th exit; empty: it did not come within 20 s.
  std::string wait(std::size_t count = 1) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, seconds(20), [&] { return all_.size() >= count; });
    return all_.size() >= count ? all_[count - 1].detail : "";
  }
  std::size_t count() {
    const std::lock_guard lock(mutex_);
    return all_.size();
  }
  std::vector<WorkerExit> all() {
    const std::lock_guard lock(mutex_);
    return all_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<WorkerExit> all_;
};

/// A script for /bin/sh, as an executable.
std::string makeScript(const TempDir& dir, const std::string& text) {
  const std::string path = dir.file("worker.sh");
  std::ofstream(path) << "#!/bin/sh\n" << text << "\n";
  ::chmod(path.c_str(), 0755);
  return path;
}

WorkerSpec specOf(Rank rank) {
  WorkerSpec spec;
  spec.rank = rank;
  spec.worldSize = 4;
  return spec;
}

struct Fixture {
  explicit Fixture(std::unique_ptr<WorkerLauncher> launcher, const SupervisorOptions& options = noRestarts()) {
    start(std::move(launcher), options);
  }
  /// Its workers run this script.
  explicit Fixture(const std::string& script, const SupervisorOptions& options = noRestarts()) {
    start(makeProcessLauncher(makeScript(scripts, script)), options);
  }
  static SupervisorOptions noRestarts() {
    SupervisorOptions options;
    options.restart.limit = 0;
    return options;
  }

  void start(std::unique_ptr<WorkerLauncher> launcher, SupervisorOptions options) {
    options.socketPath = dir.file("workers.sock");
    auto started = Supervisor::start(options, std::move(launcher), [this](const WorkerExit& exit) { exits.add(exit); });
    REQUIRE(started.ok());
    supervisor = *std::move(started);
  }
  WorkerSnapshot of(Rank rank) const {
    for (const WorkerSnapshot& each : supervisor->snapshot()) {
      if (each.rank == rank) return each;
    }
    return {};
  }
  /// Polls, for what has no event of its own: states that time brings, and lines that pass through a pipe.
  template <typename Condition>
  bool eventually(Condition condition) const {
    const auto deadline = Clock::now() + seconds(20);
    while (!condition()) {
      if (Clock::now() > deadline) return false;
      std::this_thread::sleep_for(milliseconds(5));
    }
    return true;
  }

  TempDir dir;
  TempDir scripts;
  Exits exits;
  std::unique_ptr<Supervisor> supervisor;
};

bool isAlive(pid_t pid) {
  std::string state;
  std::ifstream stat(absl::StrCat("/proc/", pid, "/stat"));
  std::string skipped;
  stat >> skipped >> skipped >> state;
  return !state.empty() && state != "Z";
}

TEST_CASE("an exit is told once, with pid and code, and its last lines are kept") {
  Fixture f("i=0; while [ $i -lt 30 ]; do echo line $i; i=$((i+1)); done; echo oops >&2; printf unfinished; exit 3");
  REQUIRE(f.supervisor->launch(specOf(2)).ok());
  const std::string detail = f.exits.wait();
  CAPTURE(detail);
  const WorkerSnapshot snapshot = f.of(2);
  CHECK(snapshot.state == WorkerState::kFailed);
  CHECK(snapshot.detail == absl::StrCat("pid ", snapshot.pid, ": exit code 3"));
  CHECK(detail == snapshot.detail);
  const std::vector<std::string> lines = f.supervisor->lastLines(2);
  REQUIRE(lines.size() == 20);
  CHECK(lines.front() == "line 12");
  CHECK(lines.back() == "unfinished");
  f.supervisor.reset();
  CHECK(f.exits.count() == 1);
}

TEST_CASE("a signal is named") {
  Fixture f("kill -SEGV $$");
  REQUIRE(f.supervisor->launch(specOf(0)).ok());
  CHECK(absl::StrContains(f.exits.wait(), "killed by signal 11 (SIGSEGV)"));
}

TEST_CASE("kill -9 of a worker is seen at once") {
  Fixture f("exec sleep 1000");
  REQUIRE(f.supervisor->launch(specOf(0)).ok());
  const auto start = Clock::now();
  ::kill(static_cast<pid_t>(f.of(0).pid), SIGKILL);
  CHECK(absl::StrContains(f.exits.wait(), "killed by signal 9 (SIGKILL)"));
  CHECK(since(start) < 1000);
}

TEST_CASE("a binary that cannot be run is an error that names it") {
  const TempDir dir;
  for (const std::string& binary : {dir.file("missing"), dir.path()}) {
    Fixture f(makeProcessLauncher(binary));
    const int before = openDescriptors();
    const absl::Status status = f.supervisor->launch(specOf(0));
    CHECK_FALSE(status.ok());
    CHECK(absl::StrContains(status.message(), binary));
    CHECK(f.of(0).state == WorkerState::kDead);
    CHECK(absl::StrContains(f.of(0).detail, binary));
    CHECK(openDescriptors() == before);
    f.supervisor.reset();
    CHECK(f.exits.count() == 0);
  }
}

TEST_CASE("a worker gets its command line, four descriptors, a group of its own and no blocked or ignored signal") {
  sigset_t blocked;
  sigset_t old;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &blocked, &old);
  const auto oldPipe = ::signal(SIGPIPE, SIG_IGN);
  const int leaky = ::open("/dev/null", O_RDONLY);  // without O_CLOEXEC, as a library may do
  Fixture f(
      "echo \"args: $*\"; echo fds: $(ls /proc/self/fd); echo signals: $(grep -E '^Sig(Blk|Ign)' /proc/self/status); "
      "echo pgid: $(cut -d' ' -f5 /proc/$$/stat) pid: $$; echo stdin: $(readlink /proc/$$/fd/0)");
  WorkerSpec spec = specOf(1);
  spec.frameEndpoint = "ipc:///f";
  spec.reportEndpoint = "ipc:///r";
  spec.supervisorTarget = "unix:/s";
  spec.valuesPath = "/v";
  REQUIRE(f.supervisor->launch(spec).ok());
  f.exits.wait();
  ::pthread_sigmask(SIG_SETMASK, &old, nullptr);
  ::signal(SIGPIPE, oldPipe);
  ::close(leaky);
  const std::string output = absl::StrJoin(f.supervisor->lastLines(1), "\n");
  CAPTURE(output);
  CHECK(absl::StrContains(
      output,
      "args: --rank 1 --incarnation 1 --world-size 4 --device cpu --frames ipc:///f --reports ipc:///r "
      "--supervisor unix:/s --values /v --threads 1 --heartbeat-interval-ms 1000 --comm-timeout-ms 600000 "
      "--memory-limit 0 --log-level info --lifetime-fd 3\n"));
  CHECK(absl::StrContains(output, "fds: 0 1 2 3 4\n"));  // 4 is ls's own: the folder
  // Ignored are 32 and 33 only, which glibc keeps to itself.
  CHECK(absl::StrContains(output, "signals: SigBlk: 0000000000000000 SigIgn: 0000000180000000\n"));
  CHECK(absl::StrContains(output, absl::StrCat("pgid: ", f.of(1).pid, " pid: ", f.of(1).pid)));
  CHECK(absl::StrContains(output, "stdin: /dev/null"));
}

TEST_CASE("endless lines and bytes that are no text are cut and cleaned") {
  Fixture f("head -c 10000 /dev/zero | tr '\\0' x; echo; printf 'caf\\377\\n'");
  REQUIRE(f.supervisor->launch(specOf(0)).ok());
  f.exits.wait();
  const std::vector<std::string> lines = f.supervisor->lastLines(0);
  REQUIRE(lines.size() == 4);
  CHECK(lines[0] == std::string(4096, 'x'));
  CHECK(lines[2] == std::string(10000 - 2 * 4096, 'x'));
  CHECK(lines[3] == "caf?");
}

TEST_CASE("a worker that floods its log is read, and does not delay the exit of another") {
  spdlog::set_level(spdlog::level::warn);
  Fixture f("case $2 in 0) exec yes;; *) exec sleep 1000;; esac");
  REQUIRE(f.supervisor->launch(specOf(0)).ok());
  REQUIRE(f.supervisor->launch(specOf(1)).ok());
  REQUIRE(f.eventually([&] { return !f.supervisor->lastLines(0).empty(); }));
  const auto start = Clock::now();
  ::kill(static_cast<pid_t>(f.of(1).pid), SIGKILL);
  CHECK(absl::StrContains(f.exits.wait(), "SIGKILL"));
  CHECK(since(start) < 2000);
  spdlog::set_level(spdlog::level::info);
}

TEST_CASE("what a worker leaves behind in its process group is killed with it") {
  SECTION("when it ends by itself, even with the pipe still open") {
    Fixture f("sleep 1000 & echo child $!; exit 1");
    REQUIRE(f.supervisor->launch(specOf(0)).ok());
    f.exits.wait();
    const pid_t child = std::stoi(f.supervisor->lastLines(0).at(0).substr(6));
    CHECK(f.eventually([&] { return !isAlive(child); }));
  }
  SECTION("when it is terminated") {
    Fixture f("trap '' TERM; sh -c \"trap '' TERM; echo child \\$\\$; while :; do sleep 1000; done\" & wait; wait");
    REQUIRE(f.supervisor->launch(specOf(0)).ok());
    REQUIRE(f.eventually([&] { return !f.supervisor->lastLines(0).empty(); }));
    const pid_t child = std::stoi(f.supervisor->lastLines(0).at(0).substr(6));
    REQUIRE(isAlive(child));
    const auto start = Clock::now();
    f.supervisor->terminateAll(milliseconds(0));
    CHECK(since(start) >= 1000);  // SIGTERM was ignored
    CHECK(since(start) < 4000);
    CHECK(f.eventually([&] { return !isAlive(child); }));
    CHECK(f.of(0).state == WorkerState::kDead);
    CHECK(f.exits.count() == 0);
  }
}

TEST_CASE(
    "terminateAll waits for those that end by themselves, then SIGTERM suffices; no exit is told; twice is once") {
  Fixture f("case $2 in 0) read line < \"$(dirname $0)/fifo\"; exit 0;; *) exec sleep 1000;; esac");
  REQUIRE(::mkfifo(f.scripts.file("fifo").c_str(), 0600) == 0);
  REQUIRE(f.supervisor->launch(specOf(0)).ok());
  REQUIRE(f.supervisor->launch(specOf(1)).ok());
  f.supervisor->expectExits();  // before they are told to end
  const int fifo = ::open(f.scripts.file("fifo").c_str(), O_WRONLY | O_CLOEXEC);
  REQUIRE(::write(fifo, "go\n", 3) == 3);
  ::close(fifo);
  const auto start = Clock::now();
  f.supervisor->terminateAll(milliseconds(300));
  CHECK(since(start) >= 300);
  CHECK(since(start) < 1200);
  CHECK(absl::StrContains(f.of(0).detail, "exit code 0"));
  CHECK(absl::StrContains(f.of(1).detail, "killed by signal 15 (SIGTERM)"));
  const auto again = Clock::now();
  f.supervisor->terminateAll(seconds(10));
  CHECK(since(again) < 100);
  CHECK(f.supervisor->launch(specOf(2)).code() == absl::StatusCode::kCancelled);
  CHECK(f.exits.count() == 0);
}

TEST_CASE("a rank has one worker at a time, and a new one after its end") {
  Fixture f("exec sleep 1000");
  REQUIRE(f.supervisor->launch(specOf(0)).ok());
  const std::int64_t first = f.of(0).pid;
  CHECK(f.supervisor->launch(specOf(0)).code() == absl::StatusCode::kAlreadyExists);
  ::kill(static_cast<pid_t>(first), SIGKILL);
  f.exits.wait();
  REQUIRE(f.supervisor->launch(specOf(0)).ok());
  CHECK(f.of(0).pid != first);
  CHECK(f.of(0).state == WorkerState::kStarting);
  CHECK(f.of(0).detail.empty());
}

TEST_CASE("100 starts and ends leave no descriptor and no process behind") {
  Fixture f("exit 0");
  REQUIRE(f.supervisor->launch(specOf(0)).ok());
  f.exits.wait(1);
  const int before = openDescriptors();
  for (std::size_t i = 0; i < 100; ++i) {
    REQUIRE(f.supervisor->launch(specOf(0)).ok());
    f.exits.wait(i + 2);
  }
  CHECK(openDescriptors() == before);
  CHECK(f.exits.count() == 101);
  f.supervisor.reset();
  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);
  CHECK(errno == ECHILD);
}

// Starts a worker that writes a line when its lifetime pipe ends, says its pid and stays.
TEST_CASE("role: daemon", "[.]") {
  spdlog::set_level(spdlog::level::off);  // its output is the test's
  SupervisorOptions options;
  options.socketPath = roleVariable("DTORCH_TEST_DIR") + "/workers.sock";
  auto supervisor = Supervisor::start(options, makeProcessLauncher(roleVariable("DTORCH_TEST_SCRIPT")), {});
  if (!supervisor.ok() || !(*supervisor)->launch(specOf(0)).ok() || !(*supervisor)->launch(specOf(1)).ok()) {
    return roleSays("failed");
  }
  for (const WorkerSnapshot& worker : (*supervisor)->snapshot()) roleSays(absl::StrCat(worker.pid));
  std::string line;
  roleHears(&line);
}

TEST_CASE("a worker sees the end of its lifetime pipe when the daemon is killed, whatever its siblings do") {
  const TempDir dir;
  // Rank 1 ignores the end: were the write end inherited, rank 0 would not see it.
  const std::string script = makeScript(
      dir, absl::StrCat("case $2 in 0) ;; *) exec sleep 1000;; esac; cat <&3; echo gone > ", dir.file("fifo")));
  REQUIRE(::mkfifo(dir.file("fifo").c_str(), 0600) == 0);
  const FileDescriptor fifo(::open(dir.file("fifo").c_str(), O_RDWR | O_CLOEXEC));
  RoleProcess daemon("role: daemon", {{"DTORCH_TEST_DIR", dir.path()}, {"DTORCH_TEST_SCRIPT", script}});
  const std::string pid = daemon.readLine().value_or("failed");
  REQUIRE(pid != "failed");
  const pid_t sibling = std::stoi(daemon.readLine().value_or("0"));
  REQUIRE(isAlive(std::stoi(pid)));
  daemon.signal(SIGKILL);
  REQUIRE(daemon.wait());
  pollfd said{.fd = fifo.get(), .events = POLLIN, .revents = 0};
  CHECK(::poll(&said, 1, 10'000) == 1);
  REQUIRE(isAlive(sibling));
  ::kill(sibling, SIGKILL);
}

/// A worker without a process; it ends when it is forced to.
class FakeHandle final : public WorkerHandle {
 public:
  FakeHandle(std::int64_t pid, int exitFd, std::atomic<int>* terminated)
      : pid_(pid), exitFd_(exitFd), terminated_(terminated) {}
  std::int64_t pid() const override { return pid_; }
  int exitFd() const override { return exitFd_.get(); }
  std::string takeExit() override { return "returned"; }
  std::vector<std::string> lastLines() const override { return {}; }
  void terminate(bool force) override {
    terminated_->fetch_add(force ? 100 : 1);
    if (force) ::eventfd_write(exitFd_.get(), 1);
  }

 private:
  const std::int64_t pid_;
  const FileDescriptor exitFd_;
  std::atomic<int>* const terminated_;
};

class FakeLauncher final : public WorkerLauncher {
 public:
  explicit FakeLauncher(std::atomic<int>* terminated) : terminated_(terminated) {}
  absl::StatusOr<std::unique_ptr<WorkerHandle>> launch(const WorkerSpec& spec) override {
    return std::make_unique<FakeHandle>(1000 + spec.rank, ::eventfd(0, EFD_CLOEXEC), terminated_);
  }

 private:
  std::atomic<int>* const terminated_;
};

/// Sends heartbeats as a worker does.
class Beater {
 public:
  explicit Beater(const std::string& socketPath)
      : stub_(v1::Supervisor::NewStub(grpc::CreateChannel("unix:" + socketPath, grpc::InsecureChannelCredentials()))) {}
  grpc::Status beat(Rank rank, std::int64_t pid, std::uint32_t protocol = kProtocolVersion) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + seconds(20));
    v1::Heartbeat heartbeat;
    heartbeat.set_protocol(protocol);
    heartbeat.set_rank(rank);
    heartbeat.set_pid(pid);
    heartbeat.set_done(++done_);
    return stub_->Beat(&context, heartbeat, &reply_);
  }
  bool accepted(Rank rank, std::int64_t pid) { return beat(rank, pid).ok() && !reply_.stop(); }

 private:
  std::unique_ptr<v1::Supervisor::Stub> stub_;
  v1::HeartbeatReply reply_;
  std::uint64_t done_ = 0;
};

TEST_CASE("starting, ready, silent, ready again, dead") {
  std::atomic<int> terminated = 0;
  SupervisorOptions options = Fixture::noRestarts();
  options.silentAfter = milliseconds(200);
  Fixture f(std::make_unique<FakeLauncher>(&terminated), options);
  Beater worker(f.dir.file("workers.sock"));
  REQUIRE(f.supervisor->launch(specOf(0)).ok());
  CHECK(f.of(0).state == WorkerState::kStarting);
  CHECK(f.of(0).heartbeatAgeMs == -1);
  CHECK(worker.accepted(0, 1000));
  CHECK(f.of(0).state == WorkerState::kStarting);
  CHECK(f.of(0).heartbeatAgeMs >= 0);
  CHECK(f.of(0).lastHeartbeat.done() == 1);

  const auto start = Clock::now();
  f.supervisor->markReady(0, 1);
  CHECK(f.of(0).state == WorkerState::kReady);
  CHECK(f.eventually([&] { return f.of(0).state == WorkerState::kSilent; }));
  CHECK(since(start) >= 200);
  CHECK(worker.accepted(0, 1000));
  CHECK(f.of(0).state == WorkerState::kReady);
  CHECK(f.exits.count() == 0);
  CHECK(terminated == 0);

  f.supervisor->terminateAll(milliseconds(0));
  CHECK(terminated == 101);  // asked, then forced
  CHECK(f.of(0).state == WorkerState::kDead);
  CHECK(f.of(0).detail == "pid 1000: returned");
  CHECK_FALSE(worker.accepted(0, 1000));
}

TEST_CASE("a silent worker is killed in the end, and it is said why") {
  std::atomic<int> terminated = 0;
  SupervisorOptions options = Fixture::noRestarts();
  options.silentAfter = milliseconds(100);
  options.silentKill = milliseconds(400);
  Fixture f(std::make_unique<FakeLauncher>(&terminated), options);
  REQUIRE(f.supervisor->launch(specOf(0)).ok());
  const auto start = Clock::now();
  f.supervisor->markReady(0, 1);
  CHECK(f.eventually([&] { return f.of(0).state == WorkerState::kSilent; }));
  CHECK(since(start) < 400);
  const std::string detail = f.exits.wait();
  CHECK(since(start) >= 400);
  CHECK(since(start) < 2000);
  CHECK(absl::StrContains(detail, "pid 1000: returned: it had sent no heartbeat for "));
  CHECK(terminated == 100);
  CHECK(f.exits.count() == 1);
}

TEST_CASE("a lost worker is replaced after a delay, and told apart from the one before") {
  SupervisorOptions options;
  options.restart.delay = milliseconds(200);
  Fixture f("exec sleep 1000", options);
  REQUIRE(f.supervisor->launch(specOf(3)).ok());
  const std::int64_t first = f.of(3).pid;
  const auto start = Clock::now();
  ::kill(static_cast<pid_t>(first), SIGKILL);
  f.exits.wait();
  CHECK(f.of(3).state == WorkerState::kDead);
  CHECK(absl::StrContains(f.of(3).detail, "SIGKILL"));
  CHECK(absl::StrContains(f.of(3).detail, "another one is started in "));
  REQUIRE(f.eventually([&] { return f.of(3).state == WorkerState::kStarting && f.of(3).pid != 0; }));
  CHECK(since(start) >= 200);
  CHECK(f.of(3).pid != first);
  CHECK(f.of(3).restarts == 1);
  CHECK(f.of(3).detail.empty());
  REQUIRE(f.exits.all().size() == 1);
  CHECK(f.exits.all()[0].restarts);
  CHECK(f.exits.all()[0].incarnation == 1);
  ::kill(static_cast<pid_t>(f.of(3).pid), SIGKILL);
  f.exits.wait(2);
  CHECK(f.exits.all()[1].incarnation == 2);
}

TEST_CASE("a worker that is lost again and again is given up") {
  SupervisorOptions options;
  options.restart = {.delay = milliseconds(1), .longestDelay = milliseconds(2), .limit = 3};
  Fixture f("exit 7", options);
  REQUIRE(f.supervisor->launch(specOf(0)).ok());
  f.exits.wait(4);
  REQUIRE(f.eventually([&] { return f.of(0).state == WorkerState::kFailed; }));
  const std::vector<WorkerExit> exits = f.exits.all();
  REQUIRE(exits.size() == 4);
  for (std::size_t i = 0; i < 4; ++i) CHECK(exits[i].restarts == (i < 3));
  CHECK(absl::StrContains(f.of(0).detail, "exit code 7; given up after 3 restarts within 600 s"));
  CHECK(f.of(0).restarts == 3);
  std::this_thread::sleep_for(milliseconds(50));
  CHECK(f.exits.count() == 4);
}

TEST_CASE("a replacement that cannot be started, or does not come up, is tried again") {
  class Launcher final : public WorkerLauncher {
   public:
    explicit Launcher(std::atomic<int>* terminated) : terminated_(terminated) {}
    absl::StatusOr<std::unique_ptr<WorkerHandle>> launch(const WorkerSpec& spec) override {
      if (spec.incarnation == 2) return absl::ResourceExhaustedError("no process to be had");
      return std::make_unique<FakeHandle>(1000 + static_cast<std::int64_t>(spec.incarnation), ::eventfd(0, EFD_CLOEXEC),
                                          terminated_);
    }

   private:
    std::atomic<int>* const terminated_;
  };
  std::atomic<int> terminated = 0;
  SupervisorOptions options;
  options.silentAfter = milliseconds(40);
  options.startTimeout = milliseconds(100);
  options.restart = {.delay = milliseconds(1), .longestDelay = milliseconds(2), .limit = 3};
  Fixture f(std::make_unique<Launcher>(&terminated), options);
  REQUIRE(f.supervisor->launch(specOf(0)).ok());
  f.supervisor->end(0, 7);  // not this one
  CHECK(terminated == 0);
  f.supervisor->end(0, 1);
  f.exits.wait(4);
  const std::vector<WorkerExit> exits = f.exits.all();
  REQUIRE(exits.size() == 4);
  CHECK(exits[1].detail == "no process to be had");
  CHECK(exits[1].restarts);
  CHECK(exits[2].detail == "pid 1003: returned: it did not come up within 100 ms");
  CHECK_FALSE(exits[3].restarts);
  CHECK(f.of(0).state == WorkerState::kFailed);
}

TEST_CASE("no worker is started while all are to end") {
  SupervisorOptions options;
  options.restart.delay = milliseconds(100);
  Fixture f("exec sleep 1000", options);
  REQUIRE(f.supervisor->launch(specOf(0)).ok());
  ::kill(static_cast<pid_t>(f.of(0).pid), SIGKILL);
  f.exits.wait();
  f.supervisor->expectExits();
  std::this_thread::sleep_for(milliseconds(200));
  CHECK(f.of(0).state == WorkerState::kDead);
  CHECK(f.of(0).restarts == 0);
}

TEST_CASE("a heartbeat of an unknown rank or another process is told to stop, another protocol is refused") {
  std::atomic<int> terminated = 0;
  Fixture f(std::make_unique<FakeLauncher>(&terminated));
  Beater worker(f.dir.file("workers.sock"));
  CHECK_FALSE(worker.accepted(0, 1000));
  REQUIRE(f.supervisor->launch(specOf(0)).ok());
  CHECK(worker.accepted(0, 1000));
  CHECK_FALSE(worker.accepted(0, 1001));
  CHECK_FALSE(worker.accepted(-1, 1000));
  CHECK(f.of(0).lastHeartbeat.pid() == 1000);
  const grpc::Status other = worker.beat(0, 1000, kProtocolVersion + 1);
  CHECK(other.error_code() == grpc::StatusCode::FAILED_PRECONDITION);
  CHECK(absl::StrContains(other.error_message(), absl::StrCat("version ", kProtocolVersion + 1)));
}

TEST_CASE("the heartbeat socket is the owner's only, and replaces a stale one") {
  const TempDir dir;
  SupervisorOptions options;
  options.socketPath = dir.file("workers.sock");
  std::atomic<int> terminated = 0;
  for (int round = 0; round < 2; ++round) {
    auto supervisor = Supervisor::start(options, std::make_unique<FakeLauncher>(&terminated), {});
    REQUIRE(supervisor.ok());
    struct stat socket {};
    REQUIRE(::lstat(options.socketPath.c_str(), &socket) == 0);
    CHECK((socket.st_mode & 0777) == 0600);
    CHECK(Supervisor::start(options, std::make_unique<FakeLauncher>(&terminated), {}).status().code() ==
          absl::StatusCode::kAlreadyExists);
  }
  CHECK(::access(options.socketPath.c_str(), F_OK) != 0);
}

TEST_CASE("a worker that sends heartbeats while it is still being launched is known") {
  // As in thread mode, where launch() returns after the worker's threads run.
  class BeatingLauncher final : public WorkerLauncher {
   public:
    BeatingLauncher(const TempDir* dir, bool* accepted) : dir_(dir), accepted_(accepted) {}
    absl::StatusOr<std::unique_ptr<WorkerHandle>> launch(const WorkerSpec& spec) override {
      *accepted_ = Beater(dir_->file("workers.sock")).accepted(spec.rank, 1000);
      return std::make_unique<FakeHandle>(1000, ::eventfd(0, EFD_CLOEXEC), &terminated_);
    }

   private:
    const TempDir* const dir_;
    bool* const accepted_;
    std::atomic<int> terminated_ = 0;
  };
  const TempDir dir;
  SupervisorOptions options;
  options.socketPath = dir.file("workers.sock");
  bool accepted = false;
  auto supervisor = Supervisor::start(options, std::make_unique<BeatingLauncher>(&dir, &accepted), {});
  REQUIRE(supervisor.ok());
  REQUIRE((*supervisor)->launch(specOf(0)).ok());
  CHECK(accepted);
  CHECK((*supervisor)->snapshot().at(0).heartbeatAgeMs >= 0);
}

TEST_CASE("SIGSTOP of a worker is no exit; it goes on when continued") {
  Fixture f("echo up; while :; do sleep 0.01; done");
  REQUIRE(f.supervisor->launch(specOf(0)).ok());
  REQUIRE(f.eventually([&] { return !f.supervisor->lastLines(0).empty(); }));
  const auto pid = static_cast<pid_t>(f.of(0).pid);
  ::kill(pid, SIGSTOP);
  CHECK(isAlive(pid));
  CHECK(f.exits.count() == 0);
  ::kill(pid, SIGCONT);
  CHECK(f.of(0).state == WorkerState::kStarting);
  f.supervisor->terminateAll(milliseconds(0));
  CHECK(f.exits.count() == 0);
  CHECK_FALSE(isAlive(pid));
}

}  // namespace
}  // namespace dtorch
