#pragma once
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "client/cpp/session_core.h"
#include "dtorch/v1/client.grpc.pb.h"

namespace dtorch {

/// The stream between a SessionCore and the daemon.
/// Owns: a reading and a sending thread. Destruction sends what is queued and closes the stream, all within 2 s.
/// Errors: how the stream ended becomes the core's cause: UNAVAILABLE, unless the daemon said something more telling.
class Connection {
 public:
  Connection(std::string address, std::string client, std::shared_ptr<SessionCore> core);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Waits for the daemon's welcome. To be called once. UNAVAILABLE: nobody listens there; DEADLINE_EXCEEDED: no
  /// answer; FAILED_PRECONDITION: the daemon speaks another version of the protocol.
  absl::StatusOr<v1::Welcome> welcome(std::chrono::steady_clock::time_point deadline);

 private:
  void readLoop(const std::string& client);
  void sendLoop();
  absl::StatusOr<v1::Welcome> greet(const std::string& client);
  grpc::Status finish();

  const std::string address_;
  const std::shared_ptr<SessionCore> core_;
  const std::unique_ptr<v1::Dtorch::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ClientMessage, v1::DaemonMessage>> stream_;
  std::atomic<bool> closing_ = false;
  std::promise<absl::StatusOr<v1::Welcome>> welcomed_;
  std::promise<void> ended_;
  std::thread sender_;  // started and joined by reader_
  std::thread reader_;
};

}  // namespace dtorch
