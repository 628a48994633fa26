#include "worker/heartbeat.h"

#include <grpcpp/grpcpp.h>
#include <pthread.h>

#include <algorithm>
#include <utility>

#include "absl/time/time.h"

namespace dtorch {
namespace {
constexpr std::chrono::milliseconds kLeastDeadline{1000};
}  // namespace

HeartbeatSender::HeartbeatSender(Options options) : options_(std::move(options)), thread_([this] { run(); }) {}

HeartbeatSender::~HeartbeatSender() { stop(); }

void HeartbeatSender::stop() {
  {
    const absl::MutexLock lock(&mutex_);
    stopped_ = true;
    if (inFlight_ != nullptr) inFlight_->TryCancel();
  }
  if (thread_.joinable()) thread_.join();
}

void HeartbeatSender::run() {
  pthread_setname_np(pthread_self(), options_.threadName.c_str());
  const std::unique_ptr<v1::Supervisor::Stub> supervisor =
      v1::Supervisor::NewStub(grpc::CreateChannel(options_.target, grpc::InsecureChannelCredentials()));
  auto next = absl::Now();
  for (;;) {
    beat(*supervisor);
    next = std::max(next + absl::FromChrono(options_.interval), absl::Now());
    const absl::MutexLock lock(&mutex_);
    if (mutex_.AwaitWithDeadline(absl::Condition(&stopped_), next)) return;
  }
}

void HeartbeatSender::beat(v1::Supervisor::Stub& supervisor) {
  v1::Heartbeat heartbeat;
  options_.fill(&heartbeat);
  v1::HeartbeatReply reply;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::max(options_.interval, kLeastDeadline));
  {
    const absl::MutexLock lock(&mutex_);
    if (stopped_) return;
    inFlight_ = &context;
  }
  const grpc::Status status = supervisor.Beat(&context, heartbeat, &reply);
  {
    const absl::MutexLock lock(&mutex_);
    inFlight_ = nullptr;
    if (stopped_) return;
  }
  if (status.ok() && failing_) options_.log->info("heartbeats reach the daemon again");
  if (!status.ok() && !failing_) options_.log->warn("heartbeats fail: {}", status.error_message());
  failing_ = !status.ok();
  if (reply.stop()) options_.onStop();
}

}  // namespace dtorch
