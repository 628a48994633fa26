#pragma once
#include <chrono>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtorch/v1/client.grpc.pb.h"

namespace dtorch {

/// What dtorchctl asks of a daemon. Thread: one.
/// Errors: UNAVAILABLE and DEADLINE_EXCEEDED name the address; FAILED_PRECONDITION: another version of the protocol.
class DaemonClient {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  explicit DaemonClient(std::string address);

  absl::StatusOr<v1::StatusReply> status(TimePoint deadline);
  /// With the stacks of the workers' threads, as they are now; at the deadline, with those that have come.
  absl::StatusOr<v1::StatusReply> statusWithStacks(TimePoint deadline);
  /// Asks until the daemon is healthy. At the deadline, the last answer.
  absl::StatusOr<v1::StatusReply> waitUntilHealthy(TimePoint deadline);
  struct Stopped {
    std::int64_t pid;
    bool gone;  // by the deadline
  };
  /// Stops the daemon, the sessions of which may go on for `drain`, and waits until its process is gone.
  absl::StatusOr<Stopped> stop(std::chrono::milliseconds drain, TimePoint deadline);

  const std::string& address() const { return address_; }

 private:
  absl::StatusOr<v1::StatusReply> ask(const v1::StatusRequest& request, TimePoint deadline);
  absl::Status error(const grpc::Status& status) const;
  /// The pid of a daemon that has taken its socket away and not ended yet: who holds the pid file beside it. 0: none.
  std::int64_t endingDaemon() const;
  bool waitUntilDisconnected(TimePoint deadline);

  const std::string address_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Dtorch::Stub> stub_;
};

}  // namespace dtorch
