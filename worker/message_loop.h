#pragma once
#include <google/protobuf/arena.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/ids.h"
#include "dtorch/v1/worker.pb.h"
#include "worker/scheduler.h"
#include "worker/stop_request.h"

namespace dtorch {

/// Receives the daemon's frames and hands their commands to the scheduler.
///
/// Thread: run() has a thread of its own. Errors: what breaks the protocol ends the loop: INTERNAL for a frame that
/// does not parse or a command that cannot be, DATA_LOSS for a gap in a topic's sequence (WIRE-1).
class MessageLoop {
 public:
  /// What the loop's thread does after each frame, and when none came in the time that it returned the last time.
  using Between = std::function<std::chrono::milliseconds()>;

  /// Connects to `endpoint` and subscribes to this worker's own topic. Throws zmq::error_t.
  MessageLoop(zmq::context_t& context, const std::string& endpoint, Rank rank, std::uint64_t incarnation,
              Scheduler& scheduler, const StopRequest& stop, Between between);

  /// OK after Shutdown; else why the loop ended: the stop request's reason, or an error of the protocol.
  absl::Status run(std::chrono::milliseconds statisticsInterval);
  /// Ends the subscriptions, by which the daemon sees that this worker is gone. After run(), on its thread.
  void close() { socket_.close(); }
  /// Bytes in the tensor table, as of the last statistics interval. Any thread.
  std::int64_t tensorBytes() const { return tensorBytes_.load(std::memory_order_relaxed); }

 private:
  struct Topic {
    GroupId group = 0;  // 0: the worker's own topic
    std::uint64_t lastSequence = 0;
  };

  /// Waits for a frame. False: none came within `timeout`, or the loop is to stop.
  bool receive(std::chrono::milliseconds timeout, zmq::message_t& topic, zmq::message_t& payload);
  absl::Status handle(const zmq::message_t& topic, const zmq::message_t& payload);
  absl::Status handleCommands(const Topic& topic, v1::Frame& frame);
  void join(const v1::JoinGroup& wanted);

  const Rank rank_;
  Scheduler& scheduler_;
  const StopRequest& stop_;
  const Between between_;
  zmq::socket_t socket_;
  absl::flat_hash_map<std::string, Topic> topics_;
  std::vector<char> arenaBlock_;
  google::protobuf::Arena arena_;  // of one frame
  bool shutDown_ = false;
  std::atomic<std::int64_t> tensorBytes_{0};
};

}  // namespace dtorch
