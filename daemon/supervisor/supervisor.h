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
#include "daemon/supervisor/restart_policy.h"
#include "daemon/supervisor/worker_launcher.h"
#include "dtorch/v1/worker.pb.h"

namespace dtorch {

/// kSilent: ready, but without a heartbeat for longer than it should; one makes it ready again, nothing is lost.
/// kStuck: its heartbeats say that an operator runs for longer than it should. kDead: ended; kFailed: likewise, and
/// none is started in its place.
enum class WorkerState : std::uint8_t { kStarting, kReady, kSilent, kStuck, kDead, kFailed };
absl::string_view name(WorkerState state);

/// A copy of what is known of one worker.
struct WorkerSnapshot {
  Rank rank = 0;
  std::int64_t pid = 0;
  std::string device;
  WorkerState state = WorkerState::kStarting;
  std::int64_t heartbeatAgeMs = -1;  // -1: none yet
  v1::Heartbeat lastHeartbeat;
  std::string detail;  // why it is stuck or dead, and what comes next
  std::uint32_t restarts = 0;
  std::shared_ptr<const std::vector<v1::ThreadStack>> stacks;  // the last that have come
  std::int64_t stacksAgeMs = -1;                               // -1: none have
};

/// A worker has ended that should not.
struct WorkerExit {
  Rank rank = 0;
  std::uint64_t incarnation = 0;
  std::string detail;     // its pid, and code or signal
  bool restarts = false;  // another one is started in its place
};

struct SupervisorOptions {
  /// Path of the Unix socket on which the Supervisor service (heartbeats) listens, mode 0600.
  std::string socketPath;
  std::chrono::milliseconds silentAfter{4000};
  /// A worker whose operator runs for longer is reported as stuck.
  std::chrono::milliseconds stuckAfter{120'000};
  /// A silent worker is killed after so long without a heartbeat, and is lost then.
  std::chrono::milliseconds silentKill{60'000};
  /// So is one that was started again and does not come up in this time.
  std::chrono::milliseconds startTimeout{60'000};
  RestartOptions restart;
};

/// Starts the workers, takes their heartbeats, sees them end, and starts others in their place.
///
/// Thread: safe; callbacks come from the supervisor's own thread.
class Supervisor {
 public:
  /// `onExit` is told once of every worker that ends without terminateAll(), and again of one that could not be started
  /// in its place; the last log lines are in the log. It must not wait for the supervisor: no exit is seen, and nothing
  /// started, until it returns.
  static absl::StatusOr<std::unique_ptr<Supervisor>> start(const SupervisorOptions& options,
                                                           std::unique_ptr<WorkerLauncher> launcher,
                                                           std::function<void(const WorkerExit&)> onExit);
  /// Ends the workers, without grace.
  ~Supervisor();
  /// Starts the worker of a rank that has none, or whose last one has ended; spec.incarnation is set here.
  /// ALREADY_EXISTS: it has one. CANCELLED: after expectExits(). Else the launcher's error, which is the worker's
  /// detail from then on; onExit is not told.
  absl::Status launch(const WorkerSpec& spec);
  /// The daemon has received this worker's hello and seen its subscription. Does nothing for one that has ended.
  void markReady(Rank rank, std::uint64_t incarnation);
  std::vector<WorkerSnapshot> snapshot() const;
  /// Each worker's next heartbeats bring the stacks of its threads.
  void askForStacks();
  /// Last log lines of a worker, for the message about one that did not come up.
  std::vector<std::string> lastLines(Rank rank) const;
  /// Ends a worker that cannot be trusted any more (SIGKILL; in thread mode it is asked). Does nothing for one that has
  /// ended.
  void end(Rank rank, std::uint64_t incarnation);
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
