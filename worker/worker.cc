#include "worker/worker.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <pthread.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <thread>
#include <utility>
#include <zmq.hpp>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "comm/group/thread_group_manager.h"
#include "comm/store/shared_allocator.h"
#include "core/resident_memory.h"
#include "proto/codec.h"
#include "proto/segment_codec.h"
#include "proto/version.h"
#include "worker/heartbeat.h"
#include "worker/kernel_runner.h"
#include "worker/message_loop.h"
#include "worker/progress.h"
#include "worker/reporter.h"
#include "worker/scheduler.h"
#include "worker/stop_request.h"
#include "worker/value_segments.h"

namespace dtorch {
namespace {

/// Without it clients get their values all the same.
std::unique_ptr<ValueServer> openValues(const WorkerOptions& options, spdlog::logger& log) {
  if (options.valuesPath.empty()) return nullptr;
  std::error_code error;  // what is no socket stays, and is named below
  if (std::filesystem::is_socket(options.valuesPath, error)) {
    std::filesystem::remove(options.valuesPath, error);  // of this rank's worker before, which was killed
  }
  absl::StatusOr<std::unique_ptr<ValueServer>> server = ValueServer::create(options.valuesPath);
  if (server.ok()) return *std::move(server);
  log.warn("large values go through the daemon: {}", std::string(server.status().message()));
  return nullptr;
}

}  // namespace

class Worker::Impl {
 public:
  Impl(const WorkerOptions& options, std::unique_ptr<ThreadGroupManager> groups, zmq::context_t* context)
      : options_(options),
        log_(spdlog::default_logger()->clone(absl::StrCat("worker ", options.rank))),
        ownContext_(context == nullptr ? std::make_unique<zmq::context_t>(1) : nullptr),
        context_(context == nullptr ? *ownContext_ : *context),
        groups_(std::move(groups)),
        reporter_(context_, options.reportEndpoint, options.rank, options.incarnation),
        values_(openValues(options, *log_)),
        scheduler_(options.rank, at::Device(options.device), streams_, gate_, reporter_, *groups_, values_,
                   destroyingPlans_),
        loop_(context_, options.frameEndpoint, options.rank, options.incarnation, scheduler_, stop_,
              [this] { return runBriefTasks(); }) {
    for (std::size_t i = 0; i < kStreams; ++i) {
      runners_[i] = std::make_unique<KernelRunner>(options.rank, static_cast<StreamKind>(i), gate_, *groups_,
                                                   lostMemory_, randomStates_, reporter_, progress_[i], log_);
    }
  }

  ~Impl() {
    stop(absl::OkStatus());
    if (thread_.joinable()) thread_.join();
  }

  void start() {
    sayHello();
    for (const StreamKind kind : {StreamKind::kCompute, StreamKind::kCommunication}) {
      streamOf(kind).start(threadName(kind == StreamKind::kCompute ? "compute" : "comm"),
                           [this, kind] { runStream(kind); });
    }
    if (!options_.supervisorTarget.empty()) startHeartbeats();
    thread_ = std::thread([this] { runLoop(); });
  }
  absl::Status wait() {
    ended_.WaitForNotification();
    return result_;
  }
  void stop(const absl::Status& why) { stop_.request(why); }

 private:
  void sayHello() {
    v1::Report report;
    v1::WorkerHello* hello = report.add_items()->mutable_hello();
    hello->set_protocol(kProtocolVersion);
    hello->set_pid(getpid());
    hello->set_device(options_.device);
    toWire(groups_->self().mailbox, hello->mutable_mailbox());
    reporter_.send(&report);
  }

  void startHeartbeats() {
    heartbeats_ = std::make_unique<HeartbeatSender>(HeartbeatSender::Options{
        options_.supervisorTarget, options_.heartbeatInterval, threadName("beat"), log_,
        [this](v1::Heartbeat* heartbeat) { fill(heartbeat); },
        [this] { stop(absl::FailedPreconditionError("the daemon does not know this worker")); }});
  }

  void runLoop() {
    pthread_setname_np(pthread_self(), threadName("loop").c_str());
    log_->info("started, pid {}, device {}, {} threads", getpid(), options_.device, options_.threads);
    at::set_num_threads(options_.threads);
    const c10::InferenceMode noAutograd;
    const absl::Status status = loop_.run(options_.heartbeatInterval);
    if (!status.ok() && !stop_.requested()) {
      log_->error("cannot go on: {}", std::string(status.message()));
      v1::Report report;
      toWire(status, report.add_items()->mutable_fault()->mutable_error());
      reporter_.send(&report);
    }
    groups_->abort(status.ok() ? absl::AbortedError(absl::StrCat("rank ", options_.rank, " was stopped")) : status);
    gate_.stop();
    for (KernelStream<Task>& stream : streams_) stream.stop();
    for (KernelStream<Task>& stream : streams_) stream.join();
    if (heartbeats_ != nullptr) heartbeats_->stop();
    loop_.close();
    log_->info("ended");
    result_ = status;
    ended_.Notify();
  }

  void runStream(StreamKind kind) {
    at::set_num_threads(options_.threads);
    const c10::InferenceMode noAutograd;
    KernelStream<Task>& stream = streamOf(kind);
    KernelStream<Task>& other = streamOf(otherStream(kind));
    ReportBatch& reports = runnerOf(kind).reports();
    std::chrono::nanoseconds patience = Doorbell::kForever;
    while (!stream.stopped()) {
      Task* task = stream.next(patience);
      if (task == nullptr) {
        if (stream.betweenTasks([&] { reports.flush(); })) patience = Doorbell::kForever;
        continue;
      }
      if (task->plan != nullptr || task->waitFor > 0 || !isBrief(*task)) reports.flushDue();
      if (task->waitFor > 0 && !other.waitFor(task->waitFor)) return stream.giveUp();
      patience = runTask(kind, *task) ? ReportBatch::kCreditDelay : Doorbell::kForever;
    }
  }

  /// Runs the task whose turn it is. True: what it has to report waits for company.
  bool runTask(StreamKind kind, Task& task) {
    KernelStream<Task>& stream = streamOf(kind);
    KernelRunner& runner = runnerOf(kind);
    runner.run(task);
    // A stream that counts as done has reported its failures: they come before the credit of their frame.
    if (stream.queued() <= 1) runner.reports().flushAllButCredit();
    const bool waits = !runner.reports().empty();
    stream.finish();
    return waits;
  }

  // On the loop's thread: while the compute stream sleeps, what takes less time than to wake it runs here.
  std::chrono::milliseconds runBriefTasks() {
    KernelStream<Task>& compute = streamOf(StreamKind::kCompute);
    const KernelStream<Task>& communication = streamOf(StreamKind::kCommunication);
    const auto suits = [&](const Task& task) {
      return task.waitFor <= communication.done() && !gate_.holding() && isBrief(task);
    };
    // Who has a task to run after this has the reports to send, too.
    briefReports_ = briefReports_ && compute.queued() == 0 &&
                    !compute.betweenTasks([&] { runnerOf(StreamKind::kCompute).reports().flush(); });
    while (Task* task = compute.nextHere(suits)) briefReports_ = runTask(StreamKind::kCompute, *task);
    scheduler_.wakeStreams();
    return briefReports_ ? ReportBatch::kCreditDelay : options_.heartbeatInterval;
  }

  // On the heartbeat thread. How long an operator runs is known to one interval: no clock is read for each operator.
  void fill(v1::Heartbeat* heartbeat) {
    heartbeat->set_protocol(kProtocolVersion);
    heartbeat->set_rank(options_.rank);
    heartbeat->set_pid(getpid());
    const auto now = std::chrono::steady_clock::now();
    const auto millisecondsSince = [now](std::chrono::steady_clock::time_point since) {
      return std::chrono::duration_cast<std::chrono::milliseconds>(now - since).count();
    };
    const absl::MutexLock plansStay(&destroyingPlans_);
    for (std::size_t i = 0; i < kStreams; ++i) {
      const StreamProgress& progress = progress_[i];
      heartbeat->set_last_done(std::max(heartbeat->last_done(), progress.lastDone.load(std::memory_order_relaxed)));
      heartbeat->set_done(heartbeat->done() + progress.done.load(std::memory_order_relaxed));
      heartbeat->set_queued(heartbeat->queued() + streams_[i].queued());
      const OperatorNumber current = progress.current.load(std::memory_order_acquire);
      Running& running = running_[i];
      if (current != running.current) running = {current, now};
      // Of the streams' operators, the one that has run for longest.
      if (current == 0 || (heartbeat->current() != 0 && millisecondsSince(running.since) <= heartbeat->current_ms())) {
        continue;
      }
      heartbeat->set_current(current);
      heartbeat->set_current_name(progress.currentPlan.load(std::memory_order_relaxed)->name);
      heartbeat->set_current_ms(millisecondsSince(running.since));
    }
    for (const RankWait& wait : groups_->waits()) {
      v1::RankWait* out = heartbeat->add_waits();
      out->set_rank(wait.peer);
      out->set_call(printable(wait.call, 1024));
      out->set_ms(millisecondsSince(wait.since));
    }
    heartbeat->set_resident_bytes(residentBytes());
    heartbeat->set_tensor_bytes(loop_.tensorBytes());
    if (const std::optional<MemoryStatistics> memory = memoryStatistics()) {
      heartbeat->set_allocated_bytes(memory->allocatedBytes);
      heartbeat->set_peak_allocated_bytes(memory->peakAllocatedBytes);
    }
  }

  std::string threadName(const char* what) const { return absl::StrCat("w", options_.rank, ".", what); }
  KernelRunner& runnerOf(StreamKind kind) { return *runners_[static_cast<std::size_t>(kind)]; }
  KernelStream<Task>& streamOf(StreamKind kind) { return streams_[static_cast<std::size_t>(kind)]; }

  const WorkerOptions options_;
  const std::shared_ptr<spdlog::logger> log_;
  const std::unique_ptr<zmq::context_t> ownContext_;
  zmq::context_t& context_;
  const std::unique_ptr<ThreadGroupManager> groups_;
  LostMemory lostMemory_;
  RandomStates randomStates_;
  Reporter reporter_;
  ValueSegments values_;
  std::array<StreamProgress, kStreams> progress_;
  StopRequest stop_;
  absl::Mutex destroyingPlans_;
  std::array<std::unique_ptr<KernelRunner>, kStreams> runners_;  // each used by whoever has its stream's turn
  CancelGate gate_;
  TaskStreams streams_;
  Scheduler scheduler_;
  MessageLoop loop_;
  std::unique_ptr<HeartbeatSender> heartbeats_;
  bool briefReports_ = false;  // the loop's thread: it has reports that wait for company
  struct Running {
    OperatorNumber current = 0;
    std::chrono::steady_clock::time_point since;
  };
  std::array<Running, kStreams> running_;  // the heartbeat thread's
  absl::Notification ended_;
  absl::Status result_;  // written before ended_
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<Worker>> Worker::start(const WorkerOptions& options, zmq::context_t* context) {
  if (options.device != "cpu") {
    return absl::UnimplementedError(absl::StrCat("device ", options.device, ": this build runs workers on cpu"));
  }
  if (options.rank < 0 || options.rank >= options.worldSize || options.threads < 1) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", options.rank, " of ", options.worldSize, " with ",
                                                   options.threads, " threads makes no worker"));
  }
  absl::StatusOr<std::unique_ptr<ThreadGroupManager>> groups =
      ThreadGroupManager::create(options.rank, options.commTimeout);
  if (!groups.ok()) return groups.status();
  try {
    auto impl = std::make_unique<Impl>(options, *std::move(groups), context);
    impl->start();
    return std::unique_ptr<Worker>(new Worker(std::move(impl)));
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat("worker ", options.rank, " cannot connect to ", options.frameEndpoint,
                                               " and ", options.reportEndpoint, ": ", error.what()));
  }
}

Worker::Worker(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Worker::~Worker() = default;
absl::Status Worker::wait() { return impl_->wait(); }
void Worker::stop(const absl::Status& why) { impl_->stop(why); }

}  // namespace dtorch
