#include "daemon/controller.h"

#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/resident_memory.h"
#include "proto/version.h"

namespace dtorch {
namespace {

// The loop goes round at least this often, so that the watchdog sees it alive.
constexpr std::chrono::milliseconds kLongestSleep{500};
// How long the sessions' requests may hold the mutex in one go; a request itself stops after as much.
constexpr std::chrono::milliseconds kPass{20};
// Most answers of the metadata process come sooner than a thread could be woken twice.
constexpr std::chrono::milliseconds kPatience{1};
// Operators in flight that status() tells of.
constexpr std::size_t kShownOperators = 32;
// And those that the loss of a worker tells of.
constexpr std::size_t kSuspects = 3;
// A worker may see the end of another one before the supervisor does, who knows more of it: its word is waited for so
// long.
constexpr std::chrono::milliseconds kLossWait{200};
// What workers say of an end so soon after it was told is of that one.
constexpr std::chrono::seconds kLossEcho{1};
// How long the loop lets others go first.
constexpr std::chrono::milliseconds kCourtesy{100};

std::int64_t nowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

template <typename... Handlers>
struct Overloaded : Handlers... {
  using Handlers::operator()...;
};
template <typename... Handlers>
Overloaded(Handlers...) -> Overloaded<Handlers...>;

}  // namespace

Controller::Controller(const ControllerOptions& options, Supervisor* supervisor)
    : worldSize_(options.executor.worldSize),
      supervisor_(supervisor),
      maxSessions_(options.maxSessions),
      maxSessionsText_(options.maxSessionsText) {}

absl::StatusOr<std::unique_ptr<Controller>> Controller::start(zmq::context_t* context, const ControllerOptions& options,
                                                              Supervisor* supervisor) {
  std::unique_ptr<Controller> controller(new Controller(options, supervisor));
  controller->wakeFd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (controller->wakeFd_ < 0) return absl::ResourceExhaustedError("no descriptor left for an eventfd");
  absl::StatusOr<std::unique_ptr<Executor>> executor = Executor::create(context, options.executor, controller.get());
  if (!executor.ok()) return executor.status();
  controller->executor_ = *std::move(executor);
  controller->futures_ = std::make_unique<FutureTable>(controller->executor_.get());
  SessionServices& services = controller->services_;
  services.layouts = &controller->layouts_;
  services.planner = &controller->planner_;
  services.executor = controller->executor_.get();
  services.futures = controller->futures_.get();
  services.worldSize = options.executor.worldSize;
  services.limits = options.limits;
  services.validate = options.validate;
  services.policy = options.policy;
  services.libraryRules = options.libraryRules;
  services.maxRules = options.maxRules;
  controller->metadata_ = std::make_unique<MetadataService>(
      options.operatorLibraries, [raw = controller.get()](std::uint64_t number, MetadataAnswer answer) {
        raw->post(Answered{number, std::move(answer)});
      });
  controller->lastTurn_ = nowMs();
  controller->thread_ = std::thread([raw = controller.get()] {
    pthread_setname_np(pthread_self(), "controller");
    raw->loop();
  });
  return controller;
}

Controller::~Controller() {
  stop();
  if (wakeFd_ >= 0) close(wakeFd_);
}

void Controller::stop() {
  stopping_ = true;
  if (wakeFd_ >= 0) eventfd_write(wakeFd_, 1);
  if (thread_.joinable()) thread_.join();
  metadata_.reset();
}

// --- any thread ---

void Controller::post(Event event) {
  bool wasEmpty = false;
  {
    absl::MutexLock lock(&queueMutex_);
    wasEmpty = queue_.empty();
    queue_.push_back(std::move(event));
  }
  if (wasEmpty) eventfd_write(wakeFd_, 1);
}

SessionId Controller::onOpen(std::shared_ptr<SessionChannel> channel) {
  const SessionId session = nextSession_++;
  ++openStreams_;
  if (draining_) {
    channel->close(absl::UnavailableError("dtorchd is draining: it takes no new sessions, and ends soon"));
  } else if (openStreams_ > maxSessions_) {
    channel->close(absl::ResourceExhaustedError(
        absl::StrCat("there are ", maxSessionsText_, " sessions: end one, or connect later")));
  } else if (session > kMaxSession) {
    channel->close(
        absl::ResourceExhaustedError("this daemon has served as many sessions as it can number: restart it"));
  } else {
    post(Opened{session, std::move(channel)});
  }
  return session;
}

void Controller::onRequest(SessionId session, std::unique_ptr<ClientRequest> request) {
  {
    absl::MutexLock lock(&queueMutex_);
    queue_.push_back(Requested{session, std::move(request)});
  }
  // This thread does the loop's work, unless the loop is at it: to wake another thread takes longer than to plan.
  if (waitingForStatus_ > 0 || !mutex_.TryLock()) {
    eventfd_write(wakeFd_, 1);
    return;
  }
  const auto unlock = absl::MakeCleanup([this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex_.Unlock(); });
  workOnLoop();
}

void Controller::onDrained(SessionId session) { post(Drained{session}); }

void Controller::drain(std::function<void()> onEmpty) {
  if (!drained_) drained_ = std::move(onEmpty);
  draining_ = true;
}

void Controller::onClosed(SessionId session, bool lost) {
  if (--openStreams_ == 0 && draining_) drained_();
  post(Closed{session, lost});
}

void Controller::requestStop(std::chrono::milliseconds drain) {
  if (stopRequested_) stopRequested_(drain);
}

std::chrono::milliseconds Controller::sinceLastTurn() const { return std::chrono::milliseconds(nowMs() - lastTurn_); }

absl::Status Controller::readiness() const {
  absl::MutexLock lock(&mutex_);
  if (ready_ || !startFailure_.ok()) return startFailure_;
  std::vector<std::string> late;
  for (Rank rank = 0; rank < worldSize_; ++rank) {
    if (connected_.contains(rank)) continue;
    late.push_back(
        absl::StrCat("worker ", rank, " (last log lines: ", absl::StrJoin(supervisor_->lastLines(rank), " / "), ")"));
  }
  return absl::UnavailableError(late.empty() ? "the workers are connected, but have not joined their group"
                                             : absl::StrCat("not up: ", absl::StrJoin(late, "; ")));
}

v1::Health Controller::healthLocked() const {
  if (stopping_) return v1::HEALTH_STOPPING;
  if (draining_) return v1::HEALTH_DRAINING;
  if (!ready_) return v1::HEALTH_STARTING;
  return services_.health.state() == WorkersHealth::State::kUp ? v1::HEALTH_HEALTHY : v1::HEALTH_DEGRADED;
}

v1::StatusReply Controller::status(const v1::StatusRequest& request) {
  if (request.ask_stacks()) supervisor_->askForStacks();
  const std::vector<WorkerSnapshot> workers = supervisor_->snapshot();
  v1::StatusReply reply;
  ++waitingForStatus_;
  absl::MutexLock lock(&mutex_);
  {
    const std::lock_guard told(statusMutex_);
    --waitingForStatus_;
  }
  statusTold_.notify_all();
  reply.set_protocol(kProtocolVersion);
  reply.set_version(kDtorchVersion);
  v1::Health health = healthLocked();
  reply.set_pid(getpid());
  reply.set_uptime_ms(
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - started_).count());
  for (const WorkerSnapshot& worker : workers) {
    v1::WorkerStatus* out = reply.add_workers();
    out->set_rank(worker.rank);
    out->set_pid(worker.pid);
    out->set_device(worker.device);
    out->set_state(std::string(name(worker.state)));
    out->set_heartbeat_age_ms(worker.heartbeatAgeMs);
    out->set_queued(worker.lastHeartbeat.queued());
    out->set_done(worker.lastHeartbeat.done());
    out->set_resident_bytes(worker.lastHeartbeat.resident_bytes());
    out->set_tensor_bytes(worker.lastHeartbeat.tensor_bytes());
    out->set_allocated_bytes(worker.lastHeartbeat.allocated_bytes());
    out->set_peak_allocated_bytes(worker.lastHeartbeat.peak_allocated_bytes());
    out->set_detail(worker.detail);
    out->set_restarts(worker.restarts);
    out->set_current(worker.lastHeartbeat.current());
    out->set_current_name(worker.lastHeartbeat.current_name());
    out->set_current_ms(worker.lastHeartbeat.current_ms());
    *out->mutable_waits() = worker.lastHeartbeat.waits();
    if (request.stacks() && worker.stacks != nullptr) {
      out->mutable_stacks()->Assign(worker.stacks->begin(), worker.stacks->end());
    }
    out->set_stacks_age_ms(worker.stacksAgeMs);
    if (const GraphOperator* op = services_.graph.find(out->current())) {
      if (const auto it = sessions_.find(op->session); it != sessions_.end()) {
        out->set_current_site(it->second->site(op->site));
      }
    }
    const bool ended = worker.state == WorkerState::kDead || worker.state == WorkerState::kFailed;
    if (ended) {
      out->set_queued(0);
      out->set_current(0);
      out->clear_waits();
    }
    if (const auto it = lost_.find(worker.rank); it != lost_.end() && !ended && worker.detail.empty()) {
      out->set_detail(std::string(it->second.why.message()));
    }
    if (health == v1::HEALTH_HEALTHY && worker.state != WorkerState::kReady) health = v1::HEALTH_DEGRADED;
  }
  reply.set_health(health);
  std::uint64_t unobserved = unobservedOfClosed_;
  for (const auto& [id, session] : sessions_) {
    *reply.add_sessions() = session->status();
    unobserved += session->unobservedFailures();
  }
  std::sort(reply.mutable_sessions()->begin(), reply.mutable_sessions()->end(),
            [](const v1::SessionStatus& a, const v1::SessionStatus& b) { return a.id() < b.id(); });
  addInFlightLocked(&reply);
  reply.set_operators_done(operatorsDone_);
  reply.set_operators_failed(services_.failed);
  reply.set_unobserved_errors(unobserved);
  reply.set_sessions_lost(sessionsLost_);
  reply.set_resident_bytes(residentBytes());
  return reply;
}

void Controller::addInFlightLocked(v1::StatusReply* reply) {
  LogicalGraph& graph = services_.graph;
  graph.retireAll([this](GroupId group) { return executor_->oldestInFlight(group); });
  reply->set_operators_in_flight(graph.size());
  const auto now = std::chrono::steady_clock::now();
  for (const GraphOperator* op : graph.oldest(kShownOperators)) {
    v1::OperatorStatus* shown = reply->add_in_flight();
    shown->set_number(op->number);
    shown->set_session(op->session);
    shown->set_name(std::string(op->name));
    if (const auto it = sessions_.find(op->session); it != sessions_.end()) shown->set_site(it->second->site(op->site));
    shown->set_age_ms(std::chrono::duration_cast<std::chrono::milliseconds>(now - op->published).count());
    shown->mutable_inputs()->Add(op->inputs.begin(), op->inputs.end());
    shown->set_first_output(op->firstOutput);
    shown->set_outputs(op->outputs);
  }
}

// --- the loop ---

void Controller::loop() {
  // One poll a turn: zmq::poll() would ask the sockets several times before it sleeps.
  std::array<pollfd, 3> polled = {
      {{executor_->reportFd(), POLLIN, 0}, {executor_->subscriptionFd(), POLLIN, 0}, {wakeFd_, POLLIN, 0}}};
  while (!stopping_) {
    poll(polled.data(), polled.size(), sleepMs());
    lastTurn_ = nowMs();
    // The mutex is not fair: who waits for it would not get it between two passes.
    {
      std::unique_lock lock(statusMutex_);
      statusTold_.wait_for(lock, kCourtesy, [this] { return waitingForStatus_ == 0; });
    }
    absl::MutexLock lock(&mutex_);
    if (polled[0].revents != 0 && !executor_->postponed()) executor_->handleReports();
    if (polled[1].revents != 0) executor_->handleSubscriptions();
    if (polled[2].revents != 0) {
      eventfd_t count = 0;
      eventfd_read(wakeFd_, &count);
    }
    expireOnLoop();
    workOnLoop();
  }
  absl::MutexLock lock(&mutex_);
  v1::WorkerCommand shutdown;
  shutdown.mutable_shutdown();
  for (const auto& [rank, hello] : connected_) executor_->sendToWorker(rank, shutdown);
}

void Controller::workOnLoop() {
  {
    absl::MutexLock queueLock(&queueMutex_);
    std::move(queue_.begin(), queue_.end(), std::back_inserter(events_));
    queue_.clear();
  }
  passEnds_ = std::chrono::steady_clock::now() + kPass;
  if (std::exchange(turnOver_, false)) resume_ = true;
  while (!events_.empty() && !passOver()) {
    handleOnLoop(std::move(events_.front()));
    events_.pop_front();
  }
  if (!events_.empty()) turnOver_ = true;
  if (executor_->postponed()) executor_->handleReports();
  for (;;) {
    serveLineOnLoop();
    boundCachesOnLoop();
    executor_->flush();
    if (executor_->framesPublished() == published_) break;
    published_ = executor_->framesPublished();
    executor_->handleSubscriptions();
  }
  const bool isDueSooner = !services_.deadlines.empty() && services_.deadlines.begin()->first < sleepsUntil_;
  if (turnOver_ || isDueSooner) eventfd_write(wakeFd_, 1);
}

void Controller::handleOnLoop(Event event) {
  const auto find = [this](SessionId id) -> ClientSession* {
    const auto it = sessions_.find(id);
    return it == sessions_.end() ? nullptr : it->second.get();
  };
  std::visit(Overloaded{[&](Opened& opened) {
                          sessions_[opened.session] =
                              std::make_unique<ClientSession>(opened.session, std::move(opened.channel), &services_);
                        },
                        [&](Requested& requested) {
                          ClientSession* session = find(requested.session);
                          if (session == nullptr) return;
                          session->accept(std::move(requested.request));
                          lineUpOnLoop(session->id());
                        },
                        [&](Drained& drained) {
                          futures_->continueTransfers(drained.session);
                          resume_ = true;  // a session may wait for its values to leave
                          ClientSession* session = find(drained.session);
                          if (session != nullptr && session->drained()) lineUpOnLoop(session->id());
                        },
                        [&](Closed& closed) {
                          ClientSession* session = find(closed.session);
                          if (session == nullptr) return;
                          unobservedOfClosed_ += session->unobservedFailures();
                          if (closed.lost) {
                            ++sessionsLost_;
                            spdlog::warn(
                                "session {} is lost: its client has ended, or does not answer, without "
                                "having closed it",
                                closed.session);
                          }
                          session->close();
                          sessions_.erase(closed.session);
                          // What a crowd of sessions has freed lies scattered, and would count as the daemon's memory.
                          if (sessions_.empty()) ::malloc_trim(0);
                        },
                        [&](Cancelled& cancelled) {
                          ClientSession* session = find(cancelled.session);
                          if (session == nullptr || !session->cancelCalls(cancelled.token, cancelled.serial)) return;
                          // It waits in line, unless it has nothing left to do.
                          resume_ = true;
                        },
                        [&](Answered& answered) {
                          planner_.answered(answered.number, std::move(answered.answer));
                          resume_ = true;  // a session waits for it
                        },
                        [&](WorkerExit& exit) {
                          if (!executor_->workerEnded(exit.rank, exit.incarnation)) return;
                          workerLostOnLoop(
                              exit.rank, absl::Status(kWorkerLost,
                                                      absl::StrCat("worker ", exit.rank, " was lost, ", exit.detail)));
                          lost_.at(exit.rank).final = !exit.restarts;
                          healthChangedOnLoop();
                        }},
             event);
}

int Controller::sleepMs() {
  absl::MutexLock lock(&mutex_);
  const auto now = std::chrono::steady_clock::now();
  sleepsUntil_ = now + (executor_->postponed() ? kLossWait : kLongestSleep);
  if (!services_.deadlines.empty()) sleepsUntil_ = std::min(sleepsUntil_, services_.deadlines.begin()->first);
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(sleepsUntil_ - now);
  return static_cast<int>(std::max(left, std::chrono::milliseconds(0)).count());
}

void Controller::expireOnLoop() {
  executor_->expireCancels();
  CallDeadlines& deadlines = services_.deadlines;
  const auto now = std::chrono::steady_clock::now();
  const auto end = deadlines.upper_bound(now);
  if (end == deadlines.begin()) return;
  absl::flat_hash_map<SessionId, std::vector<CallDeadline>> due;
  for (auto it = deadlines.begin(); it != end; ++it) due[it->second.session].push_back(it->second);
  deadlines.erase(deadlines.begin(), end);
  services_.graph.retireAll([this](GroupId group) { return executor_->oldestInFlight(group); });
  for (const auto& [id, calls] : due) {
    if (const auto it = sessions_.find(id); it != sessions_.end()) it->second->deadlinesPassed(calls);
  }
  resume_ = true;  // one in line may be late
}

void Controller::lineUpOnLoop(SessionId session) {
  line_.push_back(session);
  resume_ = true;
}

void Controller::serveLineOnLoop() {
  // Before the workers hear the daemon nothing can be sent to them.
  if (!resume_ || !ready_) return;
  resume_ = false;
  // Who has had a turn goes to the end of the line. Who got nowhere keeps its place: the credit that comes next is not
  // for those who used up the last.
  std::vector<SessionId> inPlace;
  std::vector<SessionId> served;
  while (!line_.empty() && !passOver()) {
    const SessionId id = line_.front();
    line_.pop_front();
    const auto it = sessions_.find(id);
    if (it == sessions_.end() || !it->second->hasWork()) continue;
    using Progress = ClientSession::Progress;
    const Progress progress = it->second->work();
    if (progress == Progress::kDone || progress == Progress::kHeld) continue;
    if (progress == Progress::kTurnOver) turnOver_ = true;
    (progress == Progress::kStuck ? inPlace : served).push_back(id);
  }
  if (!line_.empty()) turnOver_ = true;
  line_.insert(line_.begin(), inPlace.begin(), inPlace.end());
  line_.insert(line_.end(), served.begin(), served.end());
}

void Controller::boundCachesOnLoop() {
  const std::size_t cached =
      std::max({planner_.size(), layouts_.size(), services_.templates.size(), services_.meshes.size()});
  if (cached < cacheLimit_ && services_.templateBytes < templateBytesLimit_ && planner_.bytes() < kMinPlanBytes) {
    return;
  }
  forgetPlansOnLoop();
}

void Controller::forgetPlansOnLoop() {
  executor_->forgetPlans(planner_.forget());
  // Templates that only this table knows, and layouts that no tensor has. Plans hold their addresses, so all go
  // together.
  absl::erase_if(services_.templates, [](const auto& entry) { return entry.second.use_count() == 1; });
  services_.templateBytes = 0;
  absl::flat_hash_set<const TensorLayout*> layouts;
  absl::flat_hash_set<const PlacedMesh*> meshes;
  for (const auto& [id, session] : sessions_) session->addUsed(layouts, meshes);
  layouts_.retain(layouts);
  for (const TensorLayout* layout : layouts) meshes.insert(layout->mesh);
  for (const auto& [key, op] : services_.templates) {
    services_.templateBytes += key.size();
    meshes.insert(op->mesh);
  }
  absl::erase_if(services_.meshes, [&](const auto& entry) { return !meshes.contains(&entry.second); });
  // At most half full of what must stay: the next time is not soon.
  cacheLimit_ = std::max(kMinCached, 2 * (layouts_.size() + services_.templates.size() + services_.meshes.size()));
  templateBytesLimit_ = std::max(kMinTemplateBytes, 2 * services_.templateBytes);
}

void Controller::askOnLoop(MetadataQuestion question) {
  const std::uint64_t number = question.number;
  if (std::optional<MetadataAnswer> answer = metadata_->ask(std::move(question), kPatience)) {
    planner_.answered(number, *std::move(answer));
  }
}

void Controller::workerLostOnLoop(Rank rank, const absl::Status& cause) {
  if (lost_.contains(rank)) return;
  services_.graph.retireAll([this](GroupId group) { return executor_->oldestInFlight(group); });
  std::vector<const GraphOperator*> suspects;
  for (const GraphOperator* op : services_.graph.oldest(services_.graph.size())) {
    if (suspects.size() < kSuspects && executor_->holds(op->group, rank)) suspects.push_back(op);
  }
  const auto appendName = [](std::string* out, const GraphOperator* op) {
    absl::StrAppend(out, op->number, " ", op->name);
  };
  const absl::Status why =
      suspects.empty()
          ? cause
          : absl::Status(cause.code(), absl::StrCat(cause.message(), "; the oldest operators in flight on it: ",
                                                    absl::StrJoin(suspects, ", ", appendName)));
  lost_.emplace(rank, Loss{why});
  lastLoss_ = std::chrono::steady_clock::now();
  spdlog::error("{}", std::string(why.message()));
  for (const GraphOperator* op : suspects) {
    const auto it = sessions_.find(op->session);
    spdlog::error("operator {}, {}, was called by session {} at {}", op->number, std::string(op->name), op->session,
                  it == sessions_.end() ? "?" : it->second->site(op->site));
  }
  if (!ready_ && startFailure_.ok()) startFailure_ = why;
  // One that is still there would keep its memory, and its peers waiting.
  supervisor_->end(rank, executor_->incarnation(rank));
  executor_->failRank(rank, why);
  const absl::flat_hash_set<SessionId> told = futures_->failBrokenGroups(rank, why);
  for (const auto& [id, session] : sessions_) session->failBrokenGroups(rank, why, told.contains(id));
  services_.graph.retireAll([this](GroupId group) { return executor_->oldestInFlight(group); });
  resume_ = true;
  healthChangedOnLoop();
}

void Controller::workerRestoredOnLoop(Rank rank) {
  if (world_ == 0) return;  // the start has failed: all ends
  lost_.erase(rank);
  executor_->restoreRank(rank);
  forgetPlansOnLoop();  // the new worker knows none
  v1::Peers peers;
  peers.add_replaced(rank);
  introduceOnLoop(std::move(peers));
  world_ = executor_->reform(world_);
  for (auto& [mesh, placed] : services_.meshes) placed.group = executor_->reform(placed.group);
  resume_ = true;
}

void Controller::healthChangedOnLoop() {
  if (world_ == 0) return;
  using State = WorkersHealth::State;
  const State before = services_.health.state();
  const auto given = std::find_if(lost_.begin(), lost_.end(), [](const auto& entry) { return entry.second.final; });
  if (given != lost_.end()) {
    services_.health.set(State::kFailed, absl::Status(kWorkerLost, absl::StrCat(given->second.why.message(),
                                                                                "; none is started in its place")));
  } else {
    services_.health.set(lost_.empty() && executor_->joined(world_) ? State::kUp : State::kMissing);
  }
  const State now = services_.health.state();
  if (now == before) return;
  if (now == State::kUp) spdlog::info("all {} workers are up", worldSize_);
  if (!healthChanged_) return;
  healthChanged_(lost_.empty() ? absl::OkStatus() : lost_.begin()->second.why);
}

// --- the executor's callbacks, on the loop ---

void Controller::onWorkerConnected(Rank rank, const v1::WorkerHello& hello) {
  connected_[rank] = hello;
  supervisor_->markReady(rank, executor_->incarnation(rank));
  spdlog::info("worker {} is connected: pid {}, device {}", rank, hello.pid(), hello.device());
  if (lost_.contains(rank)) return workerRestoredOnLoop(rank);
  if (static_cast<int>(connected_.size()) != worldSize_) return;
  introduceOnLoop();
  std::vector<Rank> all(static_cast<std::size_t>(worldSize_));
  std::iota(all.begin(), all.end(), 0);
  world_ = *executor_->groupOf(all);  // the first one
}

bool Controller::postpones(const v1::Status& error) {
  if (error.code() != static_cast<int>(absl::StatusCode::kUnavailable)) return false;
  const auto now = std::chrono::steady_clock::now();
  if (now - lastLoss_ < kLossEcho) {
    postponedUntil_.reset();
    return false;
  }
  if (!postponedUntil_) postponedUntil_ = now + kLossWait;
  if (now < *postponedUntil_) return true;
  lastLoss_ = now;  // no word came: nor is it waited for with what is said of the same
  postponedUntil_.reset();
  return false;
}

void Controller::introduceOnLoop(v1::Peers peers) {
  peers.set_epoch(++epoch_);
  for (const auto& [rank, hello] : connected_) {
    if (lost_.contains(rank)) continue;
    v1::Peer* peer = peers.add_peers();
    peer->set_rank(rank);
    peer->set_pid(hello.pid());
    *peer->mutable_mailbox() = hello.mailbox();
  }
  executor_->introduce(peers);
}

void Controller::renewOnLoop(const v1::OperatorFailed& failed) {
  v1::Peers peers;
  for (const v1::BrokenGroup& broken : failed.broken()) {
    const std::vector<Rank> ranks(broken.ranks().begin(), broken.ranks().end());
    const auto isLost = [this](Rank rank) { return lost_.contains(rank); };
    // One with a lost rank is made anew with the worker that takes its place.
    if (std::any_of(ranks.begin(), ranks.end(), isLost)) continue;
    std::uint64_t& since = renewed_[ranks];
    if (broken.epoch() < since) continue;
    since = epoch_ + 1;
    *peers.add_renewed() = broken;
    spdlog::warn("ranks {} have given up a collective (see above): they form a new group", absl::StrJoin(ranks, ", "));
  }
  if (peers.renewed_size() > 0) introduceOnLoop(std::move(peers));
}

void Controller::onWorkerDisconnected(Rank rank) {
  if (!stopping_) spdlog::debug("worker {} has closed its subscription", rank);
}

void Controller::onGroupUsable(GroupId group) {
  ready_ = true;  // the first group is that of all workers
  resume_ = true;
  if (group == world_ && services_.health.state() != WorkersHealth::State::kUp) healthChangedOnLoop();
}

void Controller::onOperatorFailed(Rank rank, const v1::OperatorFailed& failed) {
  if (failed.root() == 0 || failed.root() == failed.operator_number()) {
    spdlog::warn("operator {} failed on rank {}: {}", failed.operator_number(), rank, failed.error().message());
  }
  if (ready_) renewOnLoop(failed);
  const auto it = sessions_.find(failed.session());
  if (it != sessions_.end()) it->second->operatorFailed(rank, failed);
  resume_ = true;  // the session may have waited for its outputs
}

void Controller::onOutputs(const v1::OperatorOutputs& outputs) {
  const auto it = sessions_.find(sessionOf(outputs.first_output()));
  if (it != sessions_.end()) it->second->outputsKnown(outputs);
  resume_ = true;
}

void Controller::onValue(Rank rank, const v1::FetchedValue& value) {
  OperandFailurePtr failure;
  const FutureTable::Fetched fetched = futures_->fetched(value.future());
  const auto it = sessions_.find(sessionOf(fetched.operand));
  if (it != sessions_.end()) failure = it->second->failureOf(fetched, rank, value);
  futures_->resolve(rank, value, std::move(failure));
  resume_ = true;  // a session may wait for its values to leave
}

void Controller::onFence(std::uint64_t fence) {
  const auto it = sessions_.find(sessionOf(fence));
  if (it != sessions_.end()) it->second->fenceReached(fence);
}

void Controller::onWorkerFault(Rank rank, const absl::Status& why) {
  workerLostOnLoop(rank, absl::Status(kWorkerLost, absl::StrCat("worker ", rank, " gave up: ", why.message())));
}

void Controller::onOperatorsDone(std::uint64_t operators) { operatorsDone_ += operators; }

}  // namespace dtorch
