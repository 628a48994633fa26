#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "core/config.h"

namespace dtorch {

enum class WorkerMode : std::uint8_t { kProcess, kThread };
enum class LogLevel : std::uint8_t { kDebug, kInfo, kWarn, kError };

/// Everything that dtorchd can be told. Keys, limits and documentation: the table in daemon_config.cc.
/// After loading, no member is left at "work it out": runtimeDir, listenSocket, workersThreads and workerBinary are
/// set.
struct DaemonConfig {
  std::string runtimeDir;
  std::int64_t runtimeLifetimeFd = -1;
  std::string listenSocket;
  std::string listenTcp;

  std::int64_t workersCount = 2;
  WorkerMode workersMode = WorkerMode::kProcess;
  std::int64_t workersThreads = 0;
  std::chrono::milliseconds workersStartTimeout = std::chrono::seconds(60);
  std::chrono::milliseconds workersRestartDelay{500};
  std::chrono::milliseconds workersRestartMaxDelay = std::chrono::seconds(30);
  std::int64_t workersRestartLimit = 5;
  std::chrono::milliseconds workersRestartWindow = std::chrono::minutes(10);
  std::string workerBinary;
  std::chrono::milliseconds workerSilentKill = std::chrono::seconds(60);
  std::chrono::milliseconds workerStuckAfter = std::chrono::seconds(120);

  std::chrono::milliseconds heartbeatInterval = std::chrono::seconds(1);
  std::chrono::milliseconds heartbeatSilentAfter = std::chrono::seconds(4);

  std::int64_t executorMaxOperatorsInFlight = 16384;
  ByteSize executorMaxBytesInFlight{256LL << 20};
  std::chrono::milliseconds executorMaxTimeInFlight{100};

  ByteSize sessionMaxMessage{64LL << 20};
  std::chrono::milliseconds sessionLease = std::chrono::minutes(5);
  std::int64_t sessionMaxTensors = 1 << 20;
  ByteSize sessionMaxBytes{64LL << 30};
  std::int64_t sessionMaxRules = 256;
  std::int64_t sessionsMaxCount = 1024;
  std::int64_t sessionsMaxTensors = 1 << 24;
  ByteSize sessionsMaxBytes{1LL << 50};
  bool sessionValidate = false;

  std::vector<std::string> operatorsAllow;
  std::vector<std::string> operatorsDeny;
  std::vector<std::string> operatorsLibraries;

  ByteSize workersMemory{0};
  std::chrono::milliseconds commTimeout = std::chrono::seconds(600);
  LogLevel logLevel = LogLevel::kInfo;
  std::string logFile;
  std::chrono::milliseconds shutdownTimeout = std::chrono::seconds(8);
};

/// The longest path that a Unix socket address holds, in bytes.
inline constexpr std::size_t kMaxSocketPath = 107;

const ConfigTable<DaemonConfig>& daemonConfigTable();

/// The configuration of this process's flags, environment and file, complete and checked.
absl::StatusOr<LoadedConfig<DaemonConfig>> loadDaemonConfig(const ConfigInputs& inputs);

}  // namespace dtorch
