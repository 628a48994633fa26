#include "worker/heartbeat.h"

#include <grpcpp/grpcpp.h>
#include <pthread.h>

#include <algorithm>
#include <utility>

#include "proto/codec.h"
#include "proto/grpc_lifetime.h"
#include "worker/thread_stacks.h"

namespace dtorch {
namespace {
constexpr std::chrono::milliseconds kLeastDeadline{1000};

void addStacks(v1::Heartbeat* heartbeat) {
  for (const NamedStack& stack : threadStacks()) {
    v1::ThreadStack* out = heartbeat->add_stacks();
    out->set_tid(stack.tid);
    out->set_name(printable(stack.name, 64));
    for (const std::string& frame : stack.frames) out->add_frames(printable(frame, 256));
  }
}

}  // namespace

HeartbeatSender::HeartbeatSender(Options options) : options_(std::move(options)), thread_([this] { run(); }) {}

HeartbeatSender::~HeartbeatSender() { stop(); }

void HeartbeatSender::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    if (inFlight_ != nullptr) inFlight_->TryCancel();
  }
  stopping_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void HeartbeatSender::run() {
  pthread_setname_np(pthread_self(), options_.threadName.c_str());
  keepGrpc();
  const std::unique_ptr<v1::Supervisor::Stub> supervisor =
      v1::Supervisor::NewStub(grpc::CreateChannel(options_.target, grpc::InsecureChannelCredentials()));
  auto next = std::chrono::steady_clock::now();
  for (;;) {
    beat(*supervisor);
    if (stacksWanted_) continue;
    next = std::max(next + options_.interval, std::chrono::steady_clock::now());
    std::unique_lock lock(mutex_);
    if (stopping_.wait_until(lock, next, [this] { return stopped_; })) return;
  }
}

void HeartbeatSender::beat(v1::Supervisor::Stub& supervisor) {
  v1::Heartbeat heartbeat;
  options_.fill(&heartbeat);
  if (std::exchange(stacksWanted_, false)) addStacks(&heartbeat);
  v1::HeartbeatReply reply;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::max(options_.interval, kLeastDeadline));
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    inFlight_ = &context;
  }
  const grpc::Status status = supervisor.Beat(&context, heartbeat, &reply);
  {
    const std::lock_guard lock(mutex_);
    inFlight_ = nullptr;
    if (stopped_) return;
  }
  if (status.ok() && failing_) options_.log->info("heartbeats reach the daemon again");
  if (!status.ok() && !failing_) options_.log->warn("heartbeats fail: {}", status.error_message());
  failing_ = !status.ok();
  stacksWanted_ = reply.stacks();
  if (reply.stop()) options_.onStop();
}

}  // namespace dtorch
