#include "daemon/daemon_config.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <thread>

#include "absl/strings/str_cat.h"
#include "proto/version.h"

namespace dtorch {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

// The runtime directory: systemd's, else the user's own, else one in /tmp that names the user.
std::string defaultRuntimeDir(const ConfigInputs& inputs) {
  const auto text = [&](const char* name) {
    const auto it = inputs.environment.find(name);
    return it == inputs.environment.end() ? std::string() : it->second;
  };
  if (std::string dir = text("RUNTIME_DIRECTORY"); !dir.empty()) return dir;
  if (const std::string dir = text("XDG_RUNTIME_DIR"); !dir.empty()) return absl::StrCat(dir, "/dtorch");
  return absl::StrCat("/tmp/dtorch-", ::getuid());
}

std::string defaultWorkerBinary() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "dtorch-worker" : (self.parent_path() / "dtorch-worker").string();
}

absl::Status resolve(DaemonConfig& config, const ConfigOrigins& origins, const ConfigInputs& inputs) {
  if (config.runtimeDir.empty()) config.runtimeDir = defaultRuntimeDir(inputs);
  if (config.listenSocket.empty()) config.listenSocket = absl::StrCat(config.runtimeDir, "/dtorchd.sock");
  if (config.listenSocket.size() > kMaxSocketPath) {
    return configError("listen.socket", config.listenSocket, origins.at("listen.socket"),
                       absl::StrCat("the path has ", config.listenSocket.size(), " bytes, a Unix socket holds at most ",
                                    kMaxSocketPath, ": set listen.socket or runtime.dir to a shorter one"));
  }
  if (config.workersThreads == 0) {
    const auto cores = static_cast<std::int64_t>(std::thread::hardware_concurrency());
    config.workersThreads = std::max<std::int64_t>(1, cores / config.workersCount);
  }
  if (config.workersMemory.bytes == 0) {
    const std::int64_t memory = std::int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
    config.workersMemory.bytes = memory / 5 * 4 / config.workersCount;
  }
  if (config.workerBinary.empty()) config.workerBinary = defaultWorkerBinary();
  if (config.heartbeatSilentAfter <= config.heartbeatInterval) {
    return configError("heartbeat.silent_after", absl::StrCat(config.heartbeatSilentAfter.count(), "ms"),
                       origins.at("heartbeat.silent_after"),
                       absl::StrCat("it must be longer than heartbeat.interval, which is ",
                                    config.heartbeatInterval.count(), "ms (", origins.at("heartbeat.interval"), ")"));
  }
  if (config.workerSilentKill < config.heartbeatSilentAfter) {
    return configError(
        "worker.silent_kill", absl::StrCat(config.workerSilentKill.count(), "ms"), origins.at("worker.silent_kill"),
        absl::StrCat("it must not be shorter than heartbeat.silent_after, which is ",
                     config.heartbeatSilentAfter.count(), "ms (", origins.at("heartbeat.silent_after"), ")"));
  }
  return absl::OkStatus();
}

}  // namespace

const ConfigTable<DaemonConfig>& daemonConfigTable() {
  using C = DaemonConfig;
  static const ConfigTable<DaemonConfig> table(
      {"dtorchd",
       "The dtorch daemon: runs tensor operators of its clients on a group of workers.",
       kDtorchVersion,
       {"DTORCH_SOCKET", "DTORCH_LIBRARY_PATH"}},
      {
          {"runtime.dir",
           &C::runtimeDir,
           {},
           "folder of sockets and the pid file; default: $RUNTIME_DIRECTORY, else $XDG_RUNTIME_DIR/dtorch, else "
           "/tmp/dtorch-<uid>"},
          {"runtime.lifetime_fd",
           &C::runtimeLifetimeFd,
           {-1, 1 << 20},
           "descriptor of a pipe from who started the daemon, which stops when the other end closes; -1: none"},
          {"listen.socket", &C::listenSocket, {}, "Unix socket for clients; default: <runtime.dir>/dtorchd.sock"},
          {"listen.tcp", &C::listenTcp, {}, "HOST:PORT for clients on TCP, without encryption; default: off"},
          {"workers.count", &C::workersCount, {1, 1024}, "number of workers, one rank each"},
          {"workers.mode",
           &C::workersMode,
           {{"process", WorkerMode::kProcess}, {"thread", WorkerMode::kThread}},
           "each worker is a process, or a thread of the daemon"},
          {"workers.threads", &C::workersThreads, {0, 1024}, "kernel threads a worker; 0: cores / workers"},
          {"workers.memory",
           &C::workersMemory,
           {{0}, {1LL << 50}},
           "bytes that a worker process's tensors of 64 KiB and more may hold, temporaries of kernels included; 0: "
           "four "
           "fifths of the machine's memory / workers"},
          {"workers.start_timeout",
           &C::workersStartTimeout,
           {milliseconds(100), hours(1)},
           "how long a worker may take to come up"},
          {"workers.restart_delay",
           &C::workersRestartDelay,
           {milliseconds(0), hours(1)},
           "time before a worker is started in place of a lost one; twice as long each further time"},
          {"workers.restart_max_delay",
           &C::workersRestartMaxDelay,
           {milliseconds(0), hours(24)},
           "the longest such time"},
          {"workers.restart_limit",
           &C::workersRestartLimit,
           {0, 1 << 20},
           "restarts of one rank within workers.restart_window, before it is given up; 0: none"},
          {"workers.restart_window",
           &C::workersRestartWindow,
           {milliseconds(1), hours(24 * 365)},
           "restarts that lie longer ago are forgotten"},
          {"worker.binary", &C::workerBinary, {}, "worker program; default: dtorch-worker beside dtorchd"},
          {"worker.silent_kill",
           &C::workerSilentKill,
           {milliseconds(20), hours(24 * 365)},
           "a worker without a heartbeat for this long is killed, and lost"},
          {"worker.stuck_after",
           &C::workerStuckAfter,
           {milliseconds(20), hours(24 * 365)},
           "a worker whose operator runs for longer than this is reported as stuck"},
          {"heartbeat.interval", &C::heartbeatInterval, {milliseconds(10), seconds(60)}, "time between heartbeats"},
          {"heartbeat.silent_after",
           &C::heartbeatSilentAfter,
           {milliseconds(20), hours(1)},
           "a worker without a heartbeat for this long is reported as silent"},
          {"executor.max_operators_in_flight",
           &C::executorMaxOperatorsInFlight,
           {1, 1 << 24},
           "operators sent to workers and not yet done, before clients are slowed"},
          {"executor.max_bytes_in_flight",
           &C::executorMaxBytesInFlight,
           {{1 << 16}, {1LL << 40}},
           "bytes of messages sent to workers and not yet done, before clients are slowed"},
          {"executor.max_time_in_flight",
           &C::executorMaxTimeInFlight,
           {milliseconds(1), hours(1)},
           "how long operators that were sent may take, by what they took before: as long a session waits for others"},
          {"session.lease",
           &C::sessionLease,
           {milliseconds(1000), hours(24)},
           "how long a client may be stopped, or unreachable, before its session ends and its tensors are released; "
           "one "
           "that has ended loses them at once"},
          {"session.max_message", &C::sessionMaxMessage, {{32 << 20}, {1LL << 30}}, "largest message of a client"},
          {"session.max_tensors", &C::sessionMaxTensors, {1, 1LL << 40}, "tensors that a session may hold"},
          {"session.max_bytes",
           &C::sessionMaxBytes,
           {{1 << 20}, {1LL << 50}},
           "tensor bytes that a session may hold, each tensor counted once"},
          {"sessions.max_count", &C::sessionsMaxCount, {1, 1 << 20}, "sessions that there may be at once"},
          {"sessions.max_tensors",
           &C::sessionsMaxTensors,
           {1, 1LL << 40},
           "tensors that all sessions together may hold"},
          {"sessions.max_bytes",
           &C::sessionsMaxBytes,
           {{1 << 20}, {1LL << 50}},
           "tensor bytes that all sessions together may hold, each tensor counted once"},
          {"session.max_rules", &C::sessionMaxRules, {0, 1 << 16}, "placement rules that a session may declare"},
          {"session.validate",
           &C::sessionValidate,
           {},
           "check what the kernels of all sessions read and write: for finding faults; a client can ask it for its "
           "own"},
          {"operators.allow",
           &C::operatorsAllow,
           {},
           "operators that clients may call though they are denied by default, as aten::from_file or aten::_nested_*"},
          {"operators.deny", &C::operatorsDeny, {}, "operators that clients may not call"},
          {"operators.libraries",
           &C::operatorsLibraries,
           {},
           "shared libraries that register operators (TORCH_LIBRARY), for clients to call"},
          {"comm.timeout", &C::commTimeout, {milliseconds(10), hours(24)}, "time limit of one collective"},
          {"log.level",
           &C::logLevel,
           {{"debug", LogLevel::kDebug},
            {"info", LogLevel::kInfo},
            {"warn", LogLevel::kWarn},
            {"error", LogLevel::kError}},
           "least important messages that are logged"},
          {"log.file", &C::logFile, {}, "file to append the log to; default: standard error"},
          {"shutdown.timeout",
           &C::shutdownTimeout,
           {milliseconds(0), hours(1)},
           "how long sessions and workers may take to end, a quarter each; what is in flight then fails"},
      },
      resolve);
  return table;
}

absl::StatusOr<LoadedConfig<DaemonConfig>> loadDaemonConfig(const ConfigInputs& inputs) {
  return daemonConfigTable().load(inputs);
}

}  // namespace dtorch
