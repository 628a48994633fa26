#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/ids.h"
#include "dtorch/v1/worker.pb.h"

namespace dtorch {

/// How a worker was asked to run; the launcher turns it into a process or threads.
struct WorkerSpec {
  Rank rank = 0;
  int worldSize = 1;
  std::string device = "cpu";
  std::string frameEndpoint;
  std::string reportEndpoint;
  std::string supervisorTarget;
  int threads = 1;
  std::chrono::milliseconds heartbeatInterval{1000};
  std::chrono::milliseconds commTimeout{600000};
};

/// A running worker. Thread: the supervisor's only.
class WorkerHandle {
 public:
  virtual ~WorkerHandle() = default;
  virtual std::int64_t pid() const = 0;
  /// Becomes readable when the worker has ended (a pidfd, an eventfd).
  virtual int exitFd() const = 0;
  /// After exitFd became readable: "exit code 1", "killed by signal 9 (SIGKILL)"; delivered once.
  virtual std::string takeExit() = 0;
  /// The last lines that it logged.
  virtual std::vector<std::string> lastLines() const = 0;
  /// Asks it to end (SIGTERM), then, `force`, ends it (SIGKILL to its process group).
  virtual void terminate(bool force) = 0;
};

/// Starts workers: ProcessLauncher here, the thread launcher in the dtorchd executable, fakes in tests.
class WorkerLauncher {
 public:
  virtual ~WorkerLauncher() = default;
  virtual absl::StatusOr<std::unique_ptr<WorkerHandle>> launch(const WorkerSpec& spec) = 0;
};

/// exec's `binary` with its own process group, descriptors close-on-exec, output captured line by line into the log; a
/// pipe whose write end the daemon holds tells the worker that the daemon is gone, even by kill -9.
std::unique_ptr<WorkerLauncher> makeProcessLauncher(std::string binary);

enum class WorkerState : std::uint8_t { kStarting, kReady, kSilent, kDead };
absl::string_view name(WorkerState state);

/// A copy of what is known of one worker.
struct WorkerSnapshot {
  Rank rank = 0;
  std::int64_t pid = 0;
  std::string device;
  WorkerState state = WorkerState::kStarting;
  std::int64_t heartbeatAgeMs = -1;
  v1::Heartbeat lastHeartbeat;
  std::string detail;
};

struct SupervisorOptions {
  /// Path of the Unix socket on which the Supervisor service (heartbeats) listens, mode 0600.
  std::string socketPath;
  std::chrono::milliseconds silentAfter{4000};
};

/// Starts the workers, takes their heartbeats, sees them end.
///
/// Thread: safe. Callbacks come from the supervisor's own thread, each exit exactly once.
class Supervisor {
 public:
  /// `onExit(rank, detail)` is told of every worker that ends without terminateAll(); detail has pid, code or signal and
  /// the last log lines.
  static absl::StatusOr<std::unique_ptr<Supervisor>> start(const SupervisorOptions& options,
                                                           std::unique_ptr<WorkerLauncher> launcher,
                                                           std::function<void(Rank, std::string)> onExit);
  ~Supervisor();
  absl::Status launch(const WorkerSpec& spec);
  /// The daemon has received this worker's hello and seen its subscription.
  void markReady(Rank rank);
  std::vector<WorkerSnapshot> snapshot() const;
  /// Last log lines of a worker, for the message about one that did not come up.
  std::vector<std::string> lastLines(Rank rank) const;
  /// Waits up to `grace` for all to end by themselves (they were sent Shutdown), then SIGTERM, then SIGKILL. Idempotent.
  void terminateAll(std::chrono::milliseconds grace);

 private:
  class Impl;
  explicit Supervisor(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtorch
