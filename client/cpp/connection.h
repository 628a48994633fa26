#pragma once
#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "client/cpp/local_values.h"
#include "client/cpp/session_core.h"
#include "dtorch/v1/client.grpc.pb.h"

namespace dtorch {

/// The stream between a SessionCore and the daemon.
///
/// One thread serves gRPC's completion queue. A batch is handed to gRPC by whoever makes it due (a thread that waits
/// for a value, mostly), or by that thread when the batch before it has left: a wait costs no change of threads. Owns:
/// the thread. Destruction sends what is queued and closes the stream, all within 2 s. Errors: how the stream ended
/// becomes the core's cause: UNAVAILABLE, unless the daemon said something more telling.
class Connection {
 public:
  /// `hello`: all of it but the protocol.
  Connection(std::string address, v1::ClientHello hello, std::shared_ptr<SessionCore> core);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Waits for the daemon's welcome. To be called once. UNAVAILABLE: nobody listens there; DEADLINE_EXCEEDED: no
  /// answer; FAILED_PRECONDITION: the daemon speaks another version of the protocol.
  absl::StatusOr<v1::Welcome> welcome(std::chrono::steady_clock::time_point deadline);
  /// Past what waits on the stream. Waits for the answer, 5 s at most. Any thread.
  absl::Status cancel(const v1::CancelRequest& request);

 private:
  using Clock = std::chrono::steady_clock;
  // What gRPC has completed.
  enum class Event : std::uintptr_t { kStarted = 1, kRead, kWritten, kWritesDone, kTimer, kFinished };
  static void* tag(Event event) { return reinterpret_cast<void*>(event); }

  void serve();
  void handle(Event event, bool ok);
  void onStarted();
  void onMessage();
  /// Hands the batch that is due to gRPC, unless one is on its way. Any thread.
  void sendDue();
  /// Nothing more will be read: asks for the stream's status.
  void finish();
  void onFinished();

  const std::string address_;
  const std::shared_ptr<SessionCore> core_;
  const std::unique_ptr<v1::Dtorch::Stub> stub_;
  grpc::CompletionQueue events_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientAsyncReaderWriter<v1::ClientMessage, v1::DaemonMessage>> stream_;
  std::atomic<bool> closing_ = false;
  std::promise<absl::StatusOr<v1::Welcome>> welcomed_;
  std::promise<void> ended_;

  // The serving thread's.
  LocalValues values_;
  v1::DaemonMessage message_;  // belongs to the read that is on its way
  grpc::Status status_;
  absl::Status cause_;  // known before the stream's own status
  bool greeted_ = false;
  Clock::time_point cancelAt_ = Clock::time_point::max();

  std::mutex mutex_;   // guards what follows, and that writes begin one at a time
  bool open_ = false;  // greeted, and not finishing
  bool doneWriting_ = false;
  bool timing_ = false;  // timer_ is set
  std::unique_ptr<v1::ClientMessage> sending_;
  grpc::Alarm timer_;

  std::thread thread_;
};

}  // namespace dtorch
