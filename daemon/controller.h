#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "daemon/executor/executor.h"
#include "daemon/placement/metadata_service.h"
#include "daemon/placement/rule_book.h"
#include "daemon/session/client_session.h"
#include "daemon/session/session_channel.h"
#include "daemon/supervisor/supervisor.h"

namespace dtorch {

struct ControllerOptions {
  ExecutorOptions executor;
  SessionLimits limits;
  std::size_t maxSessions = 0;
  std::string maxSessionsText;  // where that comes from: "sessions.max_count = 100"
  OperatorPolicy policy;
  RuleBook libraryRules;
  std::size_t maxRules = 0;                    // that a session may declare
  std::vector<std::string> operatorLibraries;  // paths: the metadata process loads them, too
  bool validate = false;                       // the kernels of all sessions
};

/// The daemon's heart: sessions, plans and sockets under one mutex, so that all operators have one total order. A loop
/// takes the workers' reports and the events that gRPC's threads, the supervisor and the main thread leave in its
/// queue; a thread that brings a client's request does the loop's work itself if the loop rests.
///
/// Thread: the public methods are safe; everything named OnLoop runs with mutex_ held, on the loop's thread or that of
/// a request. Owns: the loop's thread.
class Controller : public SessionListener, private ExecutorListener {
 public:
  /// `supervisor` must outlive the controller.
  static absl::StatusOr<std::unique_ptr<Controller>> start(zmq::context_t* context, const ControllerOptions& options,
                                                           Supervisor* supervisor);
  ~Controller() override;

  /// OK once every worker is up and heard. UNAVAILABLE: not yet, and which are late; else why it will not be.
  absl::Status readiness() const;
  /// A worker has ended; callback of the supervisor.
  void workerExited(WorkerExit exit) { post(std::move(exit)); }
  /// Tells the workers to end and stops the loop. Idempotent.
  void stop();
  /// Called from any thread, each time that a client asks the daemon to stop, with how long the sessions may go on.
  void onStopRequested(std::function<void(std::chrono::milliseconds)> callback) {
    stopRequested_ = std::move(callback);
  }
  /// No new sessions from now on. `onEmpty` is called once more after the last one has ended; any thread.
  void drain(std::function<void()> onEmpty);
  std::size_t sessionsLeft() const { return openStreams_; }
  /// Called on the loop, with why, when a worker is lost, and with OK when all are up again.
  void onHealth(std::function<void(const absl::Status&)> callback) { healthChanged_ = std::move(callback); }
  /// How long ago the loop last went round: for the watchdog.
  std::chrono::milliseconds sinceLastTurn() const;

  SessionId onOpen(std::shared_ptr<SessionChannel> channel) override;
  void onRequest(SessionId session, std::unique_ptr<ClientRequest> request) override;
  void onDrained(SessionId session) override;
  void onClosed(SessionId session, bool lost) override;
  void onCancel(SessionId session, std::uint64_t token, std::uint64_t serial) override {
    post(Cancelled{session, token, serial});
  }
  v1::StatusReply status(const v1::StatusRequest& request) override;
  void requestStop(std::chrono::milliseconds drain) override;

 private:
  struct Opened {
    SessionId session;
    std::shared_ptr<SessionChannel> channel;
  };
  struct Requested {
    SessionId session;
    std::unique_ptr<ClientRequest> request;
  };
  struct Drained {
    SessionId session;
  };
  struct Closed {
    SessionId session;
    bool lost;
  };
  struct Cancelled {
    SessionId session;
    std::uint64_t token;
    std::uint64_t serial;
  };
  struct Answered {
    std::uint64_t number;
    MetadataAnswer answer;
  };
  using Event = std::variant<Opened, Requested, Drained, Closed, Cancelled, WorkerExit, Answered>;

  Controller(const ControllerOptions& options, Supervisor* supervisor);
  void post(Event event);
  void loop();
  /// Deals with what is in the queue, and publishes what came of it.
  void workOnLoop();
  void handleOnLoop(Event event);
  /// The session, which has a request, gets in line for its turn.
  void lineUpOnLoop(SessionId session);
  /// Gives all in line a turn.
  void serveLineOnLoop();
  bool passOver() const { return std::chrono::steady_clock::now() > passEnds_; }
  void boundCachesOnLoop();
  /// Of calls with a time limit, and of cancels that a worker does not answer.
  void expireOnLoop();
  int sleepMs();
  void forgetPlansOnLoop();
  void askOnLoop(MetadataQuestion question);
  /// Tells the workers who they are, and begins a new epoch of groups.
  void introduceOnLoop(v1::Peers peers = {});
  /// Groups that collectives have left are made anew, each once.
  void renewOnLoop(const v1::OperatorFailed& failed);
  void workerLostOnLoop(Rank rank, const absl::Status& cause);
  /// A worker has come in the place of a lost one.
  void workerRestoredOnLoop(Rank rank);
  void healthChangedOnLoop();
  v1::Health healthLocked() const;
  void addInFlightLocked(v1::StatusReply* reply);

  void onWorkerConnected(Rank rank, const v1::WorkerHello& hello) override;
  bool postpones(const v1::Status& error) override;
  void onWorkerDisconnected(Rank rank) override;
  void onGroupUsable(GroupId group) override;
  void onOperatorFailed(Rank rank, const v1::OperatorFailed& failed) override;
  void onOutputs(const v1::OperatorOutputs& outputs) override;
  void onValue(Rank rank, const v1::FetchedValue& value) override;
  void onFence(std::uint64_t fence) override;
  void onWorkerFault(Rank rank, const absl::Status& why) override;
  void onOperatorsDone(std::uint64_t operators) override;

  const int worldSize_;
  Supervisor* supervisor_;
  std::function<void(std::chrono::milliseconds)> stopRequested_;
  std::function<void(const absl::Status&)> healthChanged_;
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  std::atomic<std::int64_t> lastTurn_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> draining_{false};
  std::function<void()> drained_;  // set before draining_
  std::atomic<int> waitingForStatus_{0};
  std::mutex statusMutex_;  // of the wait for it to be 0
  std::condition_variable statusTold_;
  std::atomic<SessionId> nextSession_{1};
  const std::size_t maxSessions_;
  const std::string maxSessionsText_;
  std::atomic<std::size_t> openStreams_{0};
  int wakeFd_ = -1;

  absl::Mutex queueMutex_;
  std::vector<Event> queue_ ABSL_GUARDED_BY(queueMutex_);

  /// Held by who does the loop's work, and by status(): guards all that is below.
  mutable absl::Mutex mutex_;
  std::deque<Event> events_;     // to be dealt with
  std::uint64_t published_ = 0;  // frames, when the subscriptions were last looked at
  LayoutTable layouts_;
  Planner planner_{&layouts_, [this](MetadataQuestion question) { askOnLoop(std::move(question)); }};
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<FutureTable> futures_;
  SessionServices services_;
  absl::flat_hash_map<SessionId, std::unique_ptr<ClientSession>> sessions_;
  std::deque<SessionId> line_;  // have a request; who waits longest for its turn is first
  bool resume_ = false;         // they may go on
  bool turnOver_ = false;       // something is left to do that had its turn
  std::chrono::steady_clock::time_point passEnds_;
  /// How many plans, templates and layouts are remembered, of the plans by the workers too: a program that calls with
  /// ever new scalars or shapes makes one a call. What is not in use is dropped then.
  static constexpr std::size_t kMinCached = 1u << 15;
  std::size_t cacheLimit_ = kMinCached;
  static constexpr std::size_t kMinTemplateBytes = 16u << 20;
  std::size_t templateBytesLimit_ = kMinTemplateBytes;
  static constexpr std::size_t kMinPlanBytes = 64u << 20;
  std::chrono::steady_clock::time_point sleepsUntil_;  // the loop
  absl::flat_hash_map<Rank, v1::WorkerHello> connected_;
  struct Loss {
    absl::Status why;
    bool final = false;  // no other worker is started
  };
  absl::flat_hash_map<Rank, Loss> lost_;
  std::chrono::steady_clock::time_point lastLoss_;
  std::optional<std::chrono::steady_clock::time_point> postponedUntil_;  // reports of a loss
  GroupId world_ = 0;                                                    // of all workers; 0: they have not come up yet
  bool ready_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status startFailure_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t epoch_ = 0;                                        // of the workers' groups
  absl::flat_hash_map<std::vector<Rank>, std::uint64_t> renewed_;  // the epoch since when a group is a new one
  std::uint64_t operatorsDone_ = 0;
  std::uint64_t unobservedOfClosed_ = 0;
  std::uint64_t sessionsLost_ = 0;

  std::unique_ptr<MetadataService> metadata_;  // from start() to stop()
  std::thread thread_;
};

}  // namespace dtorch
