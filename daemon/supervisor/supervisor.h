#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/ids.h"
#include "daemon/supervisor/worker_launcher.h"
#include "dtorch/v1/worker.pb.h"

namespace dtorch {

/// kSilent: ready, but without a heartbeat for longer than it should; one makes it ready again, nothing is lost.
enum class WorkerState : std::uint8_t { kStarting, kReady, kSilent, kDead };
absl::string_view name(WorkerState state);

/// A copy of what is known of one worker.
struct WorkerSnapshot {
  Rank rank = 0;
  std::int64_t pid = 0;
  std::string device;
  WorkerState state = WorkerState::kStarting;
  std::int64_t heartbeatAgeMs = -1;  // -1: none yet
  v1::Heartbeat lastHeartbeat;
  std::string detail;  // why it is dead
};

struct SupervisorOptions {
  /// Path of the Unix socket on which the Supervisor service (heartbeats) listens, mode 0600.
  std::string socketPath;
  std::chrono::milliseconds silentAfter{4000};
};

/// Starts the workers, takes their heartbeats, sees them end.
///
/// Thread: safe; callbacks come from the supervisor's own thread.
class Supervisor {
 public:
  /// `onExit(rank, detail)` is told once of every worker that ends without terminateAll(); detail has pid, code or
  /// signal; the last log lines are in the log. It must not wait for the supervisor: no exit is seen until it returns.
  static absl::StatusOr<std::unique_ptr<Supervisor>> start(const SupervisorOptions& options,
                                                           std::unique_ptr<WorkerLauncher> launcher,
                                                           std::function<void(Rank, std::string)> onExit);
  /// Ends the workers, without grace.
  ~Supervisor();
  /// Starts the worker of a rank that has none, or whose last one is dead. ALREADY_EXISTS: it has one. CANCELLED: after
  /// expectExits(). Else the launcher's error, which is the worker's detail from then on; onExit is not told.
  absl::Status launch(const WorkerSpec& spec);
  /// The daemon has received this worker's hello and seen its subscription.
  void markReady(Rank rank);
  std::vector<WorkerSnapshot> snapshot() const;
  /// Last log lines of a worker, for the message about one that did not come up.
  std::vector<std::string> lastLines(Rank rank) const;
  /// Ends a worker that cannot be trusted any more (SIGKILL; in thread mode it is asked). Does nothing for a dead one.
  void end(Rank rank);
  /// The workers are about to be sent Shutdown: from now on their ends are no losses. Idempotent.
  void expectExits();
  /// Expects exits, waits up to `grace` for all to end by themselves, then SIGTERM, a second later SIGKILL.
  /// Idempotent. Takes 6 s more than `grace` at most.
  void terminateAll(std::chrono::milliseconds grace);

 private:
  class Impl;
  explicit Supervisor(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtorch
