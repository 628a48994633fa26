// dtorchd: reads its configuration, takes the clients' address, starts the workers, serves until it is told to stop.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <zmq.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "daemon/controller.h"
#include "daemon/daemon_config.h"
#include "daemon/notify.h"
#include "daemon/placement/rule.h"
#include "daemon/rpc/server.h"
#include "daemon/stop_signals.h"
#include "daemon/supervisor/process_launcher.h"
#include "daemon/supervisor/supervisor.h"
#include "daemon/thread_launcher.h"
#include "dispatch/operator_library.h"
#include "proto/version.h"

namespace dtorch {
namespace {

using std::chrono::milliseconds;

// What the daemon needs beside one descriptor a session: pipes, sockets, segments on their way.
constexpr std::size_t kOwnDescriptors = 48;
constexpr std::size_t kDescriptorsPerWorker = 8;
// Of these, what connections without a session must leave.
constexpr std::size_t kLastDescriptors = 16;

// As many as the system allows; how many that are.
std::size_t raiseDescriptorLimit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

spdlog::level::level_enum levelOf(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

absl::Status openLog(const DaemonConfig& config) {
  try {
    spdlog::set_default_logger(config.logFile.empty() ? spdlog::stderr_logger_mt("dtorchd")
                                                      : spdlog::basic_logger_mt("dtorchd", config.logFile));
  } catch (const spdlog::spdlog_ex& error) {
    return absl::InvalidArgumentError(absl::StrCat("log.file = ", config.logFile, ": ", error.what()));
  }
  spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %v");
  spdlog::set_level(levelOf(config.logLevel));
  spdlog::flush_on(spdlog::level::info);
  return absl::OkStatus();
}

class Daemon {
 public:
  Daemon(DaemonConfig config, int signalFd, int wakeFd)
      : config_(std::move(config)), signalFd_(signalFd), wakeFd_(wakeFd) {}
  ~Daemon() { shutdown(); }

  absl::Status start() {
    ServerOptions serverOptions;
    serverOptions.socketPath = config_.listenSocket;
    serverOptions.pidFile = absl::StrCat(config_.runtimeDir, "/dtorchd.pid");
    serverOptions.tcpAddress = config_.listenTcp;
    serverOptions.maxMessageBytes = static_cast<std::size_t>(config_.sessionMaxMessage.bytes);
    serverOptions.lease = config_.sessionLease;
    serverOptions.maxDescriptor = static_cast<int>(
        std::min<std::size_t>(std::max(descriptors_, 2 * kLastDescriptors) - kLastDescriptors, 1 << 30));
    absl::StatusOr<std::unique_ptr<Server>> server = Server::bind(serverOptions);
    if (!server.ok()) return server.status();
    server_ = *std::move(server);

    const bool threads = config_.workersMode == WorkerMode::kThread;
    ControllerOptions options;
    options.executor.frameEndpoint =
        threads ? "inproc://frames" : absl::StrCat("ipc://", config_.runtimeDir, "/frames.sock");
    options.executor.reportEndpoint =
        threads ? "inproc://reports" : absl::StrCat("ipc://", config_.runtimeDir, "/reports.sock");
    options.executor.worldSize = static_cast<int>(config_.workersCount);
    options.executor.maxOperatorsInFlight = static_cast<std::uint64_t>(config_.executorMaxOperatorsInFlight);
    options.executor.maxBytesInFlight = static_cast<std::uint64_t>(config_.executorMaxBytesInFlight.bytes);
    options.executor.maxTimeInFlight = config_.executorMaxTimeInFlight;
    std::vector<std::string> libraryOperators;
    for (const std::string& path : config_.operatorsLibraries) {
      absl::StatusOr<OperatorLibrary> library = loadOperatorLibrary(path);
      if (!library.ok()) return library.status();
      spdlog::info("operator library {}: {}", path, absl::StrJoin(library->operators, ", "));
      if (absl::Status rules = options.libraryRules.addLines(library->placementRules); !rules.ok()) {
        return absl::InvalidArgumentError(absl::StrCat("operator library ", path, ": ", rules.message()));
      }
      libraryOperators.insert(libraryOperators.end(), library->operators.begin(), library->operators.end());
    }
    options.policy = OperatorPolicy(config_.operatorsAllow, config_.operatorsDeny, std::move(libraryOperators));
    options.operatorLibraries = config_.operatorsLibraries;
    options.limits.maxTensors = static_cast<std::size_t>(config_.sessionMaxTensors);
    options.limits.maxBytes = static_cast<std::uint64_t>(config_.sessionMaxBytes.bytes);
    options.limits.maxAllTensors = static_cast<std::size_t>(config_.sessionsMaxTensors);
    options.limits.maxAllBytes = static_cast<std::uint64_t>(config_.sessionsMaxBytes.bytes);
    if (absl::Status status = limitSessions(&options); !status.ok()) return status;
    options.maxRules = static_cast<std::size_t>(config_.sessionMaxRules);
    options.validate = config_.sessionValidate;

    SupervisorOptions supervisorOptions;
    supervisorOptions.socketPath = absl::StrCat(config_.runtimeDir, "/supervisor.sock");
    supervisorOptions.silentAfter = config_.heartbeatSilentAfter;
    supervisorOptions.stuckAfter = config_.workerStuckAfter;
    supervisorOptions.silentKill = config_.workerSilentKill;
    supervisorOptions.startTimeout = config_.workersStartTimeout;
    supervisorOptions.restart.delay = config_.workersRestartDelay;
    supervisorOptions.restart.longestDelay = config_.workersRestartMaxDelay;
    supervisorOptions.restart.limit = static_cast<int>(config_.workersRestartLimit);
    supervisorOptions.restart.window = config_.workersRestartWindow;
    absl::StatusOr<std::unique_ptr<Supervisor>> supervisor = Supervisor::start(
        supervisorOptions, threads ? makeThreadLauncher(&context_) : makeProcessLauncher(config_.workerBinary),
        [this](const WorkerExit& exit) { controller_->workerExited(exit); });
    if (!supervisor.ok()) return supervisor.status();
    supervisor_ = *std::move(supervisor);

    // ZeroMQ creates its ipc sockets with the process's umask: nobody else's from birth.
    const mode_t before = umask(0077);
    absl::StatusOr<std::unique_ptr<Controller>> controller = Controller::start(&context_, options, supervisor_.get());
    umask(before);
    if (!controller.ok()) return controller.status();
    controller_ = *std::move(controller);
    controller_->onStopRequested([this](milliseconds drain) {
      const std::lock_guard lock(wishMutex_);
      if (!wish_ || *wish_ != milliseconds(0)) wish_ = drain;  // a stop stays one
      eventfd_write(wakeFd_, 1);
    });
    controller_->onHealth([this](const absl::Status& health) {
      eventfd_write(wakeFd_, 1);
      const std::lock_guard lock(servingMutex_);
      if (draining_) return;
      server_->setServing(health.ok());
      notifyStatus(health.ok() ? readyText() : absl::StrCat("degraded: ", health.message()));
    });
    if (absl::Status status = server_->serve(controller_.get()); !status.ok()) return status;

    for (Rank rank = 0; rank < options.executor.worldSize; ++rank) {
      WorkerSpec spec;
      spec.rank = rank;
      spec.worldSize = options.executor.worldSize;
      spec.frameEndpoint = options.executor.frameEndpoint;
      spec.reportEndpoint = options.executor.reportEndpoint;
      spec.supervisorTarget = absl::StrCat("unix:", supervisorOptions.socketPath);
      spec.valuesPath = valuesPath(rank);
      spec.threads = static_cast<int>(config_.workersThreads);
      spec.heartbeatInterval = config_.heartbeatInterval;
      spec.commTimeout = config_.commTimeout;
      spec.memoryLimit = static_cast<std::uint64_t>(config_.workersMemory.bytes);
      spec.operatorLibraries = config_.operatorsLibraries;
      const spdlog::string_view_t level = spdlog::level::to_string_view(levelOf(config_.logLevel));
      spec.logLevel.assign(level.data(), level.size());
      if (absl::Status status = supervisor_->launch(spec); !status.ok()) return status;
    }
    return waitForWorkers();
  }

  // Until a signal, a client's stop, or the end of a drain.
  absl::Status serve() {
    server_->setServing(true);
    spdlog::info("ready: {} workers, clients at {}", config_.workersCount, config_.listenSocket);
    notifyReady(readyText());
    const auto watchdog = watchdogInterval();
    milliseconds turn = std::min<milliseconds>(std::chrono::seconds(10), config_.sessionLease / 8);
    if (watchdog) turn = std::min(turn, std::chrono::duration_cast<milliseconds>(*watchdog) / 3);
    std::optional<std::chrono::steady_clock::time_point> drainEnds;
    while (!drainEnds || (controller_->sessionsLeft() > 0 && std::chrono::steady_clock::now() < *drainEnds)) {
      const auto now = std::chrono::steady_clock::now();
      const auto left = drainEnds ? std::chrono::ceil<milliseconds>(*drainEnds - now) : turn;
      if (const std::optional<milliseconds> drain = stopRequested(std::min(turn, left))) {
        if (*drain == milliseconds(0)) return absl::OkStatus();
        drainEnds = std::chrono::steady_clock::now() + *drain;
        beginDrain(*drain);
      }
      if (watchdog && controller_->sinceLastTurn() < *watchdog) notifyWatchdog();
      server_->endLeases();
    }
    spdlog::info("stopping: drained, with {} sessions left", controller_->sessionsLeft());
    return absl::OkStatus();
  }

  void shutdown() {
    if (server_ == nullptr) return;
    notifyStopping();
    if (supervisor_ != nullptr) supervisor_->expectExits();  // none is started any more
    if (controller_ != nullptr) server_->setServing(false);
    server_->shutdown(config_.shutdownTimeout / 4);
    if (controller_ != nullptr) controller_->stop();
    if (supervisor_ != nullptr) supervisor_->terminateAll(config_.shutdownTimeout / 4);
    supervisor_.reset();  // its thread tells the controller of exits
    controller_.reset();
    server_.reset();
    // A worker that was killed leaves its socket's name.
    for (Rank rank = 0; rank < static_cast<Rank>(config_.workersCount); ++rank) {
      std::error_code error;
      if (std::filesystem::is_socket(valuesPath(rank), error)) std::filesystem::remove(valuesPath(rank), error);
    }
  }

 private:
  std::string readyText() const {
    return absl::StrCat(config_.workersCount, " workers, clients at ", config_.listenSocket);
  }
  std::string valuesPath(Rank rank) const { return absl::StrCat(config_.runtimeDir, "/values-", rank, ".sock"); }

  // By the configuration, and by the descriptors that there are.
  absl::Status limitSessions(ControllerOptions* options) const {
    options->maxSessions = static_cast<std::size_t>(config_.sessionsMaxCount);
    options->maxSessionsText = absl::StrCat("sessions.max_count = ", options->maxSessions);
    const std::size_t own = kOwnDescriptors + kDescriptorsPerWorker * static_cast<std::size_t>(config_.workersCount);
    if (descriptors_ <= own) {
      return absl::ResourceExhaustedError(absl::StrCat("the daemon may have ", descriptors_,
                                                       " open files and needs more than ", own,
                                                       ": raise the limit (ulimit -n, LimitNOFILE)"));
    }
    const std::size_t left = descriptors_ - own;
    if (left >= options->maxSessions) return absl::OkStatus();
    options->maxSessions = left;
    options->maxSessionsText = absl::StrCat(left, ", which is what ", descriptors_,
                                            " open files allow (the daemon's limit: ulimit -n, LimitNOFILE),");
    spdlog::warn("{} open files allow for {} sessions, less than sessions.max_count = {}", descriptors_, left,
                 config_.sessionsMaxCount);
    return absl::OkStatus();
  }

  void beginDrain(milliseconds limit) {
    controller_->drain([this] { eventfd_write(wakeFd_, 1); });
    const std::string text =
        absl::StrCat("draining for up to ", limit.count(), " ms: ", controller_->sessionsLeft(), " sessions");
    spdlog::info("{}", text);
    const std::lock_guard lock(servingMutex_);
    draining_ = true;
    server_->setServing(false);
    notifyStatus(text);
  }

  // How long the sessions may go on, if a stop has been asked for; waits for that up to `timeout`, or until something
  // else has happened that it may be worth to look at.
  std::optional<milliseconds> stopRequested(milliseconds timeout) {
    std::array<pollfd, 3> fds = {
        {{signalFd_, POLLIN, 0}, {wakeFd_, POLLIN, 0}, {static_cast<int>(config_.runtimeLifetimeFd), POLLIN, 0}}};
    if (poll(fds.data(), fds.size(), static_cast<int>(timeout.count())) <= 0) return std::nullopt;
    signalfd_siginfo info{};
    if (fds[0].revents != 0 && read(signalFd_, &info, sizeof(info)) == sizeof(info)) {
      spdlog::info("stopping: {}", info.ssi_signo == SIGTERM ? "SIGTERM" : "SIGINT");
      return milliseconds(0);
    }
    if (fds[2].revents != 0) {
      spdlog::info("stopping: who started it has ended");
      return milliseconds(0);
    }
    eventfd_t count = 0;
    eventfd_read(wakeFd_, &count);
    const std::lock_guard lock(wishMutex_);
    if (wish_ && *wish_ == milliseconds(0)) spdlog::info("stopping: asked by a client");
    return std::exchange(wish_, std::nullopt);
  }

  absl::Status waitForWorkers() {
    constexpr milliseconds kStep{100};
    const auto deadline = std::chrono::steady_clock::now() + config_.workersStartTimeout;
    while (true) {
      const absl::Status ready = controller_->readiness();
      if (!absl::IsUnavailable(ready)) return ready;
      if (stopRequested(kStep)) return absl::CancelledError("stopped during start-up");
      if (std::chrono::steady_clock::now() >= deadline) {
        return absl::DeadlineExceededError(absl::StrCat("workers.start_timeout = ", config_.workersStartTimeout.count(),
                                                        " ms is over: ", ready.message()));
      }
    }
  }

  DaemonConfig config_;
  int signalFd_;
  int wakeFd_;
  std::mutex wishMutex_;
  std::optional<milliseconds> wish_;  // guarded by it: how long the sessions may go on; none: no stop was asked for
  std::mutex servingMutex_;           // of what is told of the daemon's health
  bool draining_ = false;             // guarded by it
  const std::size_t descriptors_ = raiseDescriptorLimit();
  zmq::context_t context_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Supervisor> supervisor_;
  std::unique_ptr<Controller> controller_;
};

int run(int argc, char** argv) {
  absl::StatusOr<LoadedConfig<DaemonConfig>> loaded = loadDaemonConfig(ConfigInputs::ofProcess(argc, argv));
  if (!loaded.ok()) {
    std::fprintf(stderr, "dtorchd: %s\n", std::string(loaded.status().message()).c_str());
    return 1;
  }
  if (!loaded->output.empty()) {
    std::fputs(loaded->output.c_str(), stdout);
    return 0;
  }
  if (const auto lifetime = static_cast<int>(loaded->config.runtimeLifetimeFd);
      lifetime >= 0 && ::fcntl(lifetime, F_SETFD, FD_CLOEXEC) != 0) {
    std::fprintf(stderr, "dtorchd: runtime.lifetime_fd = %d: no open descriptor\n", lifetime);
    return 1;
  }
  signal(SIGPIPE, SIG_IGN);
  const sigset_t signals = stopSignals();
  const int signalFd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  const int wakeFd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  absl::Status status = openLog(loaded->config);
  if (status.ok()) {
    Daemon daemon(loaded->config, signalFd, wakeFd);
    status = daemon.start();
    if (status.ok()) status = daemon.serve();
    daemon.shutdown();
  }
  close(wakeFd);
  close(signalFd);
  if (status.ok() || absl::IsCancelled(status)) return 0;
  spdlog::error("{}", std::string(status.message()));
  return 1;
}

}  // namespace
}  // namespace dtorch

/// Called by main.cc. `argv`: the program's. Its exit code.
extern "C" int dtorchd_main(int argc, char** argv) {
  if (argc >= 2 && std::string(argv[1]) == dtorch::kMetadataArgument) {
    const sigset_t signals = dtorch::stopSignals();
    sigprocmask(SIG_UNBLOCK, &signals, nullptr);  // it ends as any process does
    return dtorch::serveMetadata({argv + 2, argv + argc});
  }
  // Debian's Abseil looks for deadlocks at every lock, which costs more than the lock.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  return dtorch::run(argc, argv);
}
