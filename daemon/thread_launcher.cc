#include "daemon/thread_launcher.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "worker/worker.h"

namespace dtorch {
namespace {

class ThreadWorker : public WorkerHandle {
 public:
  ThreadWorker(std::unique_ptr<Worker> worker, int exitFd) : worker_(std::move(worker)), exitFd_(exitFd) {
    waiter_ = std::thread([this] {
      const absl::Status status = worker_->wait();
      {
        absl::MutexLock lock(&mutex_);
        exit_ = status.ok() ? "ended" : absl::StrCat("ended: ", status.ToString());
      }
      eventfd_write(exitFd_, 1);
    });
  }
  ~ThreadWorker() override {
    worker_->stop(absl::CancelledError("the daemon ends"));
    waiter_.join();
    close(exitFd_);
  }

  std::int64_t pid() const override { return getpid(); }
  int exitFd() const override { return exitFd_; }
  std::string takeExit() override {
    absl::MutexLock lock(&mutex_);
    return exit_;
  }
  std::vector<std::string> lastLines() const override { return {}; }
  void terminate(bool) override { worker_->stop(absl::CancelledError("the daemon ends")); }

 private:
  std::unique_ptr<Worker> worker_;
  int exitFd_;
  absl::Mutex mutex_;
  std::string exit_ ABSL_GUARDED_BY(mutex_);
  std::thread waiter_;
};

class ThreadLauncher : public WorkerLauncher {
 public:
  explicit ThreadLauncher(zmq::context_t* context) : context_(context) {}

  absl::StatusOr<std::unique_ptr<WorkerHandle>> launch(const WorkerSpec& spec) override {
    WorkerOptions options;
    options.rank = spec.rank;
    options.incarnation = spec.incarnation;
    options.worldSize = spec.worldSize;
    options.device = spec.device;
    options.frameEndpoint = spec.frameEndpoint;
    options.reportEndpoint = spec.reportEndpoint;
    options.supervisorTarget = spec.supervisorTarget;
    options.valuesPath = spec.valuesPath;
    options.threads = spec.threads;
    options.heartbeatInterval = spec.heartbeatInterval;
    options.commTimeout = spec.commTimeout;
    absl::StatusOr<std::unique_ptr<Worker>> worker = Worker::start(options, context_);
    if (!worker.ok()) return worker.status();
    const int exitFd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (exitFd < 0) return absl::ResourceExhaustedError("no descriptor left for an eventfd");
    return std::make_unique<ThreadWorker>(*std::move(worker), exitFd);
  }

 private:
  zmq::context_t* context_;
};

}  // namespace

std::unique_ptr<WorkerLauncher> makeThreadLauncher(zmq::context_t* context) {
  return std::make_unique<ThreadLauncher>(context);
}

}  // namespace dtorch
