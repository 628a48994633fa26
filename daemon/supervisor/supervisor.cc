#include "daemon/supervisor/supervisor.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/file_descriptor.h"
#include "daemon/supervisor/heartbeat_server.h"
#include "proto/codec.h"
#include "spdlog/spdlog.h"

namespace dtorch {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kTermWait(1000);
constexpr milliseconds kKillWait(5000);

// What an epoll event is about: the worker with this number, and which of its two descriptors. 0 is the wake-up.
std::uint64_t exitKey(std::uint64_t serial) { return serial << 1; }
std::uint64_t outputKey(std::uint64_t serial) { return serial << 1 | 1; }

struct Worker {
  WorkerSpec spec;
  std::uint64_t serial = 0;              // of this launch; the next worker of the rank has another
  std::unique_ptr<WorkerHandle> handle;  // null: being launched, or ended
  std::int64_t pid = 0;                  // 0: being launched
  WorkerState state = WorkerState::kStarting;
  Clock::time_point launchedAt;
  Clock::time_point hearableSince;  // it is ready, and this supervisor listens
  std::optional<Clock::time_point> lastBeat;
  v1::Heartbeat heartbeat;  // the last one, without stacks
  bool stacksWanted = false;
  std::shared_ptr<const std::vector<v1::ThreadStack>> stacks;
  std::optional<Clock::time_point> stacksCame;
  std::string detail;
  std::string killedFor;               // why the supervisor has killed it
  std::vector<std::string> lastLines;  // of an ended one
  std::optional<Clock::time_point> restartAt;

  bool ended() const { return state == WorkerState::kDead || state == WorkerState::kFailed; }
};

// "operator 12, aten::mm, has run for 125000 ms; it waits for rank 0 in all_gather of operator 12 (124000 ms)"
std::string describeRunning(const v1::Heartbeat& beat) {
  std::string text = absl::StrCat("operator ", beat.current(), ", ", printable(beat.current_name(), 256),
                                  ", has run for ", beat.current_ms(), " ms");
  for (const v1::RankWait& wait : beat.waits()) {
    absl::StrAppend(&text, "; it waits for rank ", wait.rank(), " in ", printable(wait.call(), 1024), " (", wait.ms(),
                    " ms)");
  }
  return text;
}

std::int64_t millisecondsOf(Clock::duration time) { return std::chrono::duration_cast<milliseconds>(time).count(); }

}  // namespace

absl::string_view name(WorkerState state) {
  switch (state) {
    case WorkerState::kStarting:
      return "starting";
    case WorkerState::kReady:
      return "ready";
    case WorkerState::kSilent:
      return "silent";
    case WorkerState::kStuck:
      return "stuck";
    case WorkerState::kDead:
      return "dead";
    case WorkerState::kFailed:
      return "failed";
  }
  return "unknown";
}

class Supervisor::Impl {
 public:
  Impl(const SupervisorOptions& options, std::unique_ptr<WorkerLauncher> launcher,
       std::function<void(const WorkerExit&)> onExit)
      : options_(options), launcher_(std::move(launcher)), onExit_(std::move(onExit)) {}
  ~Impl();
  absl::Status start();

  absl::Status launch(const WorkerSpec& spec);
  void markReady(Rank rank, std::uint64_t incarnation);
  std::vector<WorkerSnapshot> snapshot();
  void askForStacks();
  std::vector<std::string> lastLines(Rank rank);
  void expectExits();
  void end(Rank rank, std::uint64_t incarnation);
  void terminateAll(milliseconds grace);

 private:
  void run();
  void onOutput(std::uint64_t serial);
  void onExited(std::uint64_t serial);
  v1::HeartbeatReply onBeat(const v1::Heartbeat& beat);
  /// Starts what is due.
  void restart();

  Worker* findLocked(std::uint64_t serial);
  absl::Status watchLocked(const Worker& worker);
  void noteSilenceLocked(Clock::time_point now);
  void killLocked(Worker& worker, std::string why);
  /// The worker of `rank` has ended: whether and when another one is started.
  void decideRestartLocked(Worker& worker);
  milliseconds untilNextRestart();
  void terminateLocked(bool force);
  bool waitUntilAllDead(std::unique_lock<std::mutex>& lock, milliseconds limit);

  const SupervisorOptions options_;
  const std::unique_ptr<WorkerLauncher> launcher_;
  const std::function<void(const WorkerExit&)> onExit_;
  FileDescriptor epoll_;
  FileDescriptor wake_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable died_;
  std::map<Rank, Worker> workers_;
  std::map<Rank, RestartPolicy> policies_;
  std::map<Rank, std::uint32_t> restarts_;  // so far
  std::uint64_t lastSerial_ = 0;
  bool ending_ = false;

  std::unique_ptr<HeartbeatServer> heartbeats_;
  std::thread thread_;
};

absl::Status Supervisor::Impl::start() {
  epoll_ = FileDescriptor(::epoll_create1(EPOLL_CLOEXEC));
  wake_ = FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_event event{.events = EPOLLIN, .data = {.u64 = 0}};
  if (!epoll_.valid() || !wake_.valid() || ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) != 0) {
    return absl::ErrnoToStatus(errno, "creating the supervisor's epoll and eventfd");
  }
  auto heartbeats =
      HeartbeatServer::start(options_.socketPath, [this](const v1::Heartbeat& beat) { return onBeat(beat); });
  if (!heartbeats.ok()) return heartbeats.status();
  heartbeats_ = *std::move(heartbeats);
  thread_ = std::thread([this] { run(); });
  return absl::OkStatus();
}

Supervisor::Impl::~Impl() {
  if (!thread_.joinable()) return;
  terminateAll(milliseconds(0));
  ::eventfd_write(wake_.get(), 1);
  thread_.join();
}

absl::Status Supervisor::Impl::launch(const WorkerSpec& spec) {
  WorkerSpec incarnated;
  {
    const std::lock_guard lock(mutex_);
    if (ending_) return absl::CancelledError("the workers are being stopped");
    const auto it = workers_.find(spec.rank);
    if (it != workers_.end() && !it->second.ended()) {
      return absl::AlreadyExistsError(absl::StrCat("rank ", spec.rank, " has a worker, pid ", it->second.pid));
    }
    Worker& worker = workers_[spec.rank] = {};
    worker.spec = spec;
    worker.serial = ++lastSerial_;
    worker.spec.incarnation = worker.serial;
    worker.launchedAt = Clock::now();
    incarnated = worker.spec;
  }
  // Without the mutex: a worker in threads sends heartbeats while it is launched. Its entry stays as it is meanwhile,
  // for only a handle's exit ends it.
  absl::StatusOr<std::unique_ptr<WorkerHandle>> handle = launcher_->launch(incarnated);
  const std::lock_guard lock(mutex_);
  Worker& worker = workers_.at(spec.rank);
  absl::Status status = handle.status();
  if (handle.ok()) {
    worker.handle = *std::move(handle);
    worker.pid = worker.handle->pid();
    status = watchLocked(worker);
  }
  if (!status.ok()) {
    worker.handle.reset();
    worker.state = WorkerState::kDead;
    worker.detail = std::string(status.message());
    died_.notify_all();
    return status;
  }
  spdlog::info("worker {} started, pid {}", spec.rank, worker.pid);
  if (ending_) worker.handle->terminate(true);
  return absl::OkStatus();
}

void Supervisor::Impl::markReady(Rank rank, std::uint64_t incarnation) {
  const std::lock_guard lock(mutex_);
  const auto it = workers_.find(rank);
  if (it == workers_.end() || it->second.serial != incarnation || it->second.state != WorkerState::kStarting) return;
  it->second.state = WorkerState::kReady;
  it->second.hearableSince = Clock::now();
}

std::vector<WorkerSnapshot> Supervisor::Impl::snapshot() {
  const std::lock_guard lock(mutex_);
  const Clock::time_point now = Clock::now();
  noteSilenceLocked(now);
  std::vector<WorkerSnapshot> result;
  for (const auto& [rank, worker] : workers_) {
    const std::int64_t age = worker.lastBeat ? millisecondsOf(now - *worker.lastBeat) : -1;
    std::string detail = worker.detail;
    if (worker.restartAt) {
      const std::int64_t left = std::max<std::int64_t>(0, millisecondsOf(*worker.restartAt - now));
      absl::StrAppend(&detail, "; another one is started in ", left, " ms");
    }
    const auto restarts = restarts_.find(rank);
    result.push_back({rank, worker.pid, worker.spec.device, worker.state, age, worker.heartbeat, std::move(detail),
                      restarts == restarts_.end() ? 0 : restarts->second, worker.stacks,
                      worker.stacksCame ? millisecondsOf(now - *worker.stacksCame) : -1});
  }
  return result;
}

void Supervisor::Impl::askForStacks() {
  const std::lock_guard lock(mutex_);
  for (auto& [rank, worker] : workers_) worker.stacksWanted = true;
}

std::vector<std::string> Supervisor::Impl::lastLines(Rank rank) {
  const std::lock_guard lock(mutex_);
  const auto it = workers_.find(rank);
  if (it == workers_.end()) return {};
  return it->second.handle != nullptr ? it->second.handle->lastLines() : it->second.lastLines;
}

void Supervisor::Impl::end(Rank rank, std::uint64_t incarnation) {
  const std::lock_guard lock(mutex_);
  const auto it = workers_.find(rank);
  if (it == workers_.end() || it->second.serial != incarnation || it->second.handle == nullptr) return;
  it->second.handle->terminate(true);
}

void Supervisor::Impl::expectExits() {
  const std::lock_guard lock(mutex_);
  ending_ = true;
  for (auto& [rank, worker] : workers_) worker.restartAt.reset();
}

void Supervisor::Impl::terminateAll(milliseconds grace) {
  expectExits();
  std::unique_lock lock(mutex_);
  if (waitUntilAllDead(lock, grace)) return;
  terminateLocked(false);
  if (waitUntilAllDead(lock, kTermWait)) return;
  terminateLocked(true);
  if (!waitUntilAllDead(lock, kKillWait)) spdlog::error("some workers have not ended after SIGKILL");
}

void Supervisor::Impl::run() {
  ::pthread_setname_np(::pthread_self(), "dtorch-superv");
  const auto tick = std::clamp(options_.silentAfter / 4, milliseconds(5), milliseconds(1000));
  Clock::time_point lastTurn = Clock::now();
  for (;;) {
    epoll_event events[16];
    const auto timeout = std::min(tick, untilNextRestart());
    const int count = ::epoll_wait(epoll_.get(), events, 16, static_cast<int>(timeout.count()));
    for (int i = 0; i < count; ++i) {
      const std::uint64_t key = events[i].data.u64;
      if (key == 0) return;
      if (key == exitKey(key >> 1)) {
        onExited(key >> 1);
      } else {
        onOutput(key >> 1);
      }
    }
    restart();
    const std::lock_guard lock(mutex_);
    const Clock::time_point now = Clock::now();
    // This process was stopped, or got no processor: nobody could be heard meanwhile.
    if (now - lastTurn > tick + options_.silentAfter / 2) {
      for (auto& [rank, worker] : workers_) worker.hearableSince = now;
    }
    lastTurn = now;
    noteSilenceLocked(now);
  }
}

milliseconds Supervisor::Impl::untilNextRestart() {
  const std::lock_guard lock(mutex_);
  milliseconds left = milliseconds::max();
  const Clock::time_point now = Clock::now();
  for (const auto& [rank, worker] : workers_) {
    if (!worker.restartAt) continue;
    left = std::min(left, std::max(milliseconds(0), std::chrono::ceil<milliseconds>(*worker.restartAt - now)));
  }
  return left;
}

void Supervisor::Impl::restart() {
  std::vector<WorkerSpec> due;
  {
    const std::lock_guard lock(mutex_);
    const Clock::time_point now = Clock::now();
    for (auto& [rank, worker] : workers_) {
      if (!worker.restartAt || *worker.restartAt > now) continue;
      worker.restartAt.reset();
      ++restarts_[rank];
      due.push_back(worker.spec);
    }
  }
  for (const WorkerSpec& spec : due) {
    const absl::Status status = launch(spec);
    if (status.ok() || absl::IsCancelled(status)) continue;
    WorkerExit exit{.rank = spec.rank, .detail = std::string(status.message())};
    {
      const std::lock_guard lock(mutex_);
      Worker& worker = workers_.at(spec.rank);
      decideRestartLocked(worker);
      exit.incarnation = worker.serial;
      exit.restarts = worker.restartAt.has_value();
    }
    spdlog::error("worker {} was not started again: {}", spec.rank, exit.detail);
    onExit_(exit);
  }
}

void Supervisor::Impl::decideRestartLocked(Worker& worker) {
  if (ending_) return;
  RestartPolicy& policy = policies_.try_emplace(worker.spec.rank, options_.restart).first->second;
  const Clock::time_point now = Clock::now();
  if (const std::optional<milliseconds> delay = policy.lost(now)) {
    worker.restartAt = now + *delay;
    return;
  }
  worker.state = WorkerState::kFailed;
  if (options_.restart.limit == 0) return;
  absl::StrAppend(&worker.detail, "; given up after ", policy.recent(), " restarts within ",
                  millisecondsOf(options_.restart.window) / 1000, " s");
}

void Supervisor::Impl::onOutput(std::uint64_t serial) {
  WorkerHandle* handle = nullptr;  // stays: only this thread ends a handle, in onExited()
  {
    const std::lock_guard lock(mutex_);
    if (const Worker* worker = findLocked(serial)) handle = worker->handle.get();
  }
  // Without the mutex: it writes to the log, and heartbeats shall not wait for that.
  if (handle == nullptr || handle->readOutput()) return;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, handle->outputFd(), nullptr);
}

void Supervisor::Impl::onExited(std::uint64_t serial) {
  std::unique_lock lock(mutex_);
  Worker* worker = findLocked(serial);
  if (worker == nullptr) return;
  std::unique_ptr<WorkerHandle> handle = std::move(worker->handle);
  const Rank rank = worker->spec.rank;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, handle->exitFd(), nullptr);
  if (handle->outputFd() >= 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, handle->outputFd(), nullptr);
  lock.unlock();

  std::string detail = absl::StrCat("pid ", handle->pid(), ": ", handle->takeExit());
  const std::vector<std::string> lines = handle->lastLines();
  handle.reset();  // its descriptors are free before anybody is told

  lock.lock();
  // Still the same worker: launch() replaces ended ones only.
  if (!worker->killedFor.empty()) absl::StrAppend(&detail, ": ", worker->killedFor);
  worker->state = WorkerState::kDead;
  worker->detail = detail;
  worker->lastLines = lines;
  const bool expected = ending_;
  decideRestartLocked(*worker);
  const WorkerExit exit{rank, serial, worker->detail, worker->restartAt.has_value()};
  died_.notify_all();
  lock.unlock();
  if (expected) {
    spdlog::info("worker {} ended, {}", rank, detail);
    return;
  }
  spdlog::error("worker {} is lost, {}; its last lines:\n  {}", rank, exit.detail, absl::StrJoin(lines, "\n  "));
  onExit_(exit);
}

v1::HeartbeatReply Supervisor::Impl::onBeat(const v1::Heartbeat& beat) {
  v1::HeartbeatReply reply;
  const std::lock_guard lock(mutex_);
  const auto it = workers_.find(beat.rank());
  if (it == workers_.end() || it->second.ended() || (it->second.pid != 0 && it->second.pid != beat.pid())) {
    reply.set_stop(true);
    return reply;
  }
  Worker& worker = it->second;
  worker.heartbeat = beat;
  worker.heartbeat.clear_stacks();
  worker.lastBeat = Clock::now();
  if (beat.stacks_size() > 0) {
    worker.stacks = std::make_shared<std::vector<v1::ThreadStack>>(beat.stacks().begin(), beat.stacks().end());
    worker.stacksCame = worker.lastBeat;
  }
  reply.set_stacks(std::exchange(worker.stacksWanted, false));
  if (worker.state == WorkerState::kStarting) return reply;
  const bool stuck = beat.current() != 0 && beat.current_ms() > options_.stuckAfter.count();
  const WorkerState before = std::exchange(worker.state, stuck ? WorkerState::kStuck : WorkerState::kReady);
  worker.detail = stuck ? describeRunning(beat) : "";
  if (before == WorkerState::kSilent) spdlog::info("worker {} (pid {}) is heard again", beat.rank(), worker.pid);
  if (stuck && before != WorkerState::kStuck) {
    spdlog::warn("worker {} (pid {}) is stuck: {}", beat.rank(), worker.pid, worker.detail);
  } else if (!stuck && before == WorkerState::kStuck) {
    spdlog::info("worker {} (pid {}) goes on", beat.rank(), worker.pid);
  }
  return reply;
}

Worker* Supervisor::Impl::findLocked(std::uint64_t serial) {
  for (auto& [rank, worker] : workers_) {
    if (worker.serial == serial && worker.handle != nullptr) return &worker;
  }
  return nullptr;
}

absl::Status Supervisor::Impl::watchLocked(const Worker& worker) {
  epoll_event exit{.events = EPOLLIN, .data = {.u64 = exitKey(worker.serial)}};
  epoll_event output{.events = EPOLLIN, .data = {.u64 = outputKey(worker.serial)}};
  const int outputFd = worker.handle->outputFd();
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, worker.handle->exitFd(), &exit) != 0 ||
      (outputFd >= 0 && ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, outputFd, &output) != 0)) {
    return absl::ErrnoToStatus(errno, absl::StrCat("watching the worker of rank ", worker.spec.rank));
  }
  return absl::OkStatus();
}

void Supervisor::Impl::noteSilenceLocked(Clock::time_point now) {
  if (ending_) return;
  for (auto& [rank, worker] : workers_) {
    // Who waits for all workers at the daemon's start tells of those that are late.
    if (worker.state == WorkerState::kStarting && restarts_.contains(rank) && worker.handle != nullptr &&
        now - worker.launchedAt > options_.startTimeout) {
      killLocked(worker, absl::StrCat("it did not come up within ", millisecondsOf(options_.startTimeout), " ms"));
    }
    if (worker.state == WorkerState::kStarting || worker.ended()) continue;
    const auto silence = now - std::max(worker.hearableSince, worker.lastBeat.value_or(worker.hearableSince));
    if (worker.state != WorkerState::kSilent && silence > options_.silentAfter) {
      worker.state = WorkerState::kSilent;
      spdlog::warn("worker {} (pid {}) has sent no heartbeat for {} ms: it is waited for", rank, worker.pid,
                   millisecondsOf(silence));
    }
    if (worker.state == WorkerState::kSilent && silence > options_.silentKill && worker.handle != nullptr) {
      killLocked(worker, absl::StrCat("it had sent no heartbeat for ", millisecondsOf(silence), " ms"));
    }
  }
}

void Supervisor::Impl::killLocked(Worker& worker, std::string why) {
  if (!worker.killedFor.empty()) return;
  spdlog::error("worker {} (pid {}) is killed: {}", worker.spec.rank, worker.pid, why);
  worker.killedFor = std::move(why);
  worker.handle->terminate(true);
}

void Supervisor::Impl::terminateLocked(bool force) {
  for (const auto& [rank, worker] : workers_) {
    if (worker.handle == nullptr) continue;
    spdlog::warn("worker {} (pid {}) has not ended by itself: {}", rank, worker.pid, force ? "SIGKILL" : "SIGTERM");
    worker.handle->terminate(force);
  }
}

bool Supervisor::Impl::waitUntilAllDead(std::unique_lock<std::mutex>& lock, milliseconds limit) {
  return died_.wait_for(lock, limit, [this] {
    return std::all_of(workers_.begin(), workers_.end(), [](const auto& entry) { return entry.second.ended(); });
  });
}

Supervisor::Supervisor(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Supervisor::~Supervisor() = default;

absl::StatusOr<std::unique_ptr<Supervisor>> Supervisor::start(const SupervisorOptions& options,
                                                              std::unique_ptr<WorkerLauncher> launcher,
                                                              std::function<void(const WorkerExit&)> onExit) {
  auto impl = std::make_unique<Impl>(options, std::move(launcher), std::move(onExit));
  if (absl::Status status = impl->start(); !status.ok()) return status;
  return std::unique_ptr<Supervisor>(new Supervisor(std::move(impl)));
}

absl::Status Supervisor::launch(const WorkerSpec& spec) { return impl_->launch(spec); }
void Supervisor::markReady(Rank rank, std::uint64_t incarnation) { impl_->markReady(rank, incarnation); }
std::vector<WorkerSnapshot> Supervisor::snapshot() const { return impl_->snapshot(); }
void Supervisor::askForStacks() { impl_->askForStacks(); }
std::vector<std::string> Supervisor::lastLines(Rank rank) const { return impl_->lastLines(rank); }
void Supervisor::end(Rank rank, std::uint64_t incarnation) { impl_->end(rank, incarnation); }
void Supervisor::expectExits() { impl_->expectExits(); }
void Supervisor::terminateAll(milliseconds grace) { impl_->terminateAll(grace); }

}  // namespace dtorch
