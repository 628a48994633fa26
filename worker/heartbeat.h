#pragma once
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "dtorch/v1/worker.grpc.pb.h"
#include "spdlog/logger.h"

namespace dtorch {

/// Tells the daemon's Supervisor every interval that this worker lives and what it does; at once, with the stacks of
/// this process's threads, when the daemon wants those. A heartbeat that fails is logged, once until they succeed
/// again; whether the daemon lives is not for heartbeats to say.
///
/// Owns: its thread.
class HeartbeatSender {
 public:
  struct Options {
    std::string target;
    std::chrono::milliseconds interval;
    std::string threadName;
    std::shared_ptr<spdlog::logger> log;
    /// Fills in the next heartbeat; called on the heartbeat thread.
    std::function<void(v1::Heartbeat*)> fill;
    /// The daemon wants this worker to end; called on the heartbeat thread.
    std::function<void()> onStop;
  };
  explicit HeartbeatSender(Options options);
  ~HeartbeatSender();
  /// Cancels a heartbeat on its way and ends the thread. Idempotent.
  void stop();

 private:
  void run();
  void beat(v1::Supervisor::Stub& supervisor);

  const Options options_;
  bool failing_ = false;
  bool stacksWanted_ = false;
  std::mutex mutex_;  // guards what follows
  std::condition_variable stopping_;
  bool stopped_ = false;
  grpc::ClientContext* inFlight_ = nullptr;
  std::thread thread_;
};

}  // namespace dtorch
