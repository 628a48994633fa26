#include "daemon/supervisor/process_launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/file_descriptor.h"
#include "daemon/supervisor/worker_output.h"

namespace dtorch {
namespace {

constexpr int kLifetimeFd = 3;  // in the worker
constexpr int kKillWaitMs = 5000;

std::vector<std::string> commandLine(const std::string& binary, const WorkerSpec& spec) {
  std::vector<std::string> command = {binary,
                                      "--rank",
                                      absl::StrCat(spec.rank),
                                      "--incarnation",
                                      absl::StrCat(spec.incarnation),
                                      "--world-size",
                                      absl::StrCat(spec.worldSize),
                                      "--device",
                                      spec.device,
                                      "--frames",
                                      spec.frameEndpoint,
                                      "--reports",
                                      spec.reportEndpoint,
                                      "--supervisor",
                                      spec.supervisorTarget,
                                      "--values",
                                      spec.valuesPath,
                                      "--threads",
                                      absl::StrCat(spec.threads),
                                      "--heartbeat-interval-ms",
                                      absl::StrCat(spec.heartbeatInterval.count()),
                                      "--comm-timeout-ms",
                                      absl::StrCat(spec.commTimeout.count()),
                                      "--memory-limit",
                                      absl::StrCat(spec.memoryLimit),
                                      "--log-level",
                                      spec.logLevel,
                                      "--lifetime-fd",
                                      absl::StrCat(kLifetimeFd)};
  for (const std::string& path : spec.operatorLibraries) {
    command.insert(command.end(), {"--operator-library", path});
  }
  return command;
}

struct Pipe {
  FileDescriptor read;
  FileDescriptor write;
};

absl::StatusOr<Pipe> makePipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "creating a pipe");
  return Pipe{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

std::string describeExit(const siginfo_t& info) {
  if (info.si_code == CLD_EXITED) return absl::StrCat("exit code ", info.si_status);
  const char* abbreviation = ::sigabbrev_np(info.si_status);
  return absl::StrCat("killed by signal ", info.si_status, " (SIG", abbreviation == nullptr ? "?" : abbreviation, ")",
                      info.si_code == CLD_DUMPED ? ", core dumped" : "");
}

/// Owns: the child (until it is reaped), its pidfd, both pipes.
class ProcessHandle final : public WorkerHandle {
 public:
  ProcessHandle(Rank rank, pid_t pid, FileDescriptor pidFd, FileDescriptor output, FileDescriptor lifetime)
      : pid_(pid), pidFd_(std::move(pidFd)), lifetime_(std::move(lifetime)), output_(rank, std::move(output)) {}
  ~ProcessHandle() override {
    if (!reaped_) takeExit();
  }

  std::int64_t pid() const override { return pid_; }
  int exitFd() const override { return pidFd_.get(); }
  int outputFd() const override { return output_.fd(); }
  bool readOutput() override { return output_.read(); }
  std::vector<std::string> lastLines() const override { return output_.lastLines(); }

  std::string takeExit() override {
    // The group's id is in nobody else's use as long as its leader is not reaped. What the leader left behind goes too.
    terminate(true);
    pollfd ended{.fd = pidFd_.get(), .events = POLLIN, .revents = 0};
    ::poll(&ended, 1, kKillWaitMs);
    siginfo_t info{};
    const int result = ::waitid(P_PIDFD, static_cast<id_t>(pidFd_.get()), &info, WEXITED | WNOHANG);
    const int error = errno;
    reaped_ = true;
    output_.drain();
    if (result != 0) return absl::StrCat("ended, status unknown: ", std::strerror(error));
    return info.si_pid == 0 ? "does not end after SIGKILL" : describeExit(info);
  }

  void terminate(bool force) override {
    if (!reaped_) ::kill(-pid_, force ? SIGKILL : SIGTERM);
  }

 private:
  const pid_t pid_;
  const FileDescriptor pidFd_;
  const FileDescriptor lifetime_;
  WorkerOutput output_;
  bool reaped_ = false;
};

/// Owns: what posix_spawn wants prepared: descriptors 0 to 3 of the child and no others, its own process group, default
/// signal handling and nothing blocked.
class SpawnPlan {
 public:
  SpawnPlan(int outputFd, int lifetimeFd) {
    ::posix_spawn_file_actions_init(&actions_);
    ::posix_spawn_file_actions_adddup2(&actions_, outputFd, STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions_, outputFd, STDERR_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions_, lifetimeFd, kLifetimeFd);
    ::posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_addclosefrom_np(&actions_, kLifetimeFd + 1);
    sigset_t signals;
    ::posix_spawnattr_init(&attributes_);
    ::sigemptyset(&signals);
    ::posix_spawnattr_setsigmask(&attributes_, &signals);
    ::sigfillset(&signals);
    ::posix_spawnattr_setsigdefault(&attributes_, &signals);
    ::posix_spawnattr_setpgroup(&attributes_, 0);
    ::posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  }
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;
  ~SpawnPlan() {
    ::posix_spawn_file_actions_destroy(&actions_);
    ::posix_spawnattr_destroy(&attributes_);
  }

  absl::StatusOr<pid_t> run(std::vector<std::string> command) const {
    std::vector<char*> arguments;
    arguments.reserve(command.size() + 1);
    for (std::string& argument : command) arguments.push_back(argument.data());
    arguments.push_back(nullptr);
    pid_t pid = 0;
    const int error = ::posix_spawnp(&pid, arguments[0], &actions_, &attributes_, arguments.data(), environ);
    if (error != 0) return absl::ErrnoToStatus(error, absl::StrCat("cannot run ", command[0]));
    return pid;
  }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

class ProcessLauncher final : public WorkerLauncher {
 public:
  explicit ProcessLauncher(std::string binary) : binary_(std::move(binary)) {}

  absl::StatusOr<std::unique_ptr<WorkerHandle>> launch(const WorkerSpec& spec) override {
    absl::StatusOr<Pipe> output = makePipe();
    absl::StatusOr<Pipe> lifetime = makePipe();
    if (!output.ok()) return output.status();
    if (!lifetime.ok()) return lifetime.status();
    ::fcntl(output->read.get(), F_SETFL, O_NONBLOCK);
    const absl::StatusOr<pid_t> pid =
        SpawnPlan(output->write.get(), lifetime->read.get()).run(commandLine(binary_, spec));
    if (!pid.ok()) return pid.status();
    // Nobody else reaps the child, so its id still names it.
    FileDescriptor pidFd(static_cast<int>(::syscall(SYS_pidfd_open, *pid, 0)));
    if (!pidFd.valid()) {
      const int error = errno;
      ::kill(-*pid, SIGKILL);
      ::waitpid(*pid, nullptr, 0);
      return absl::ErrnoToStatus(error, "pidfd_open");
    }
    return std::make_unique<ProcessHandle>(spec.rank, *pid, std::move(pidFd), std::move(output->read),
                                           std::move(lifetime->write));
  }

 private:
  const std::string binary_;
};

}  // namespace

std::unique_ptr<WorkerLauncher> makeProcessLauncher(std::string binary) {
  return std::make_unique<ProcessLauncher>(std::move(binary));
}

}  // namespace dtorch
