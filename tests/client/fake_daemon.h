#pragma once
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dtorch/v1/client.grpc.pb.h"
#include "proto/version.h"

namespace dtorch {

/// A peer for tests of clients: speaks the wire of dtorchd on a Unix socket in a folder of its own. It keeps what is
/// put and gives it back, and answers every other tensor's get with NOT_FOUND.
class FakeDaemon : public v1::Dtorch::Service {
 public:
  using Stream = grpc::ServerReaderWriter<v1::DaemonMessage, v1::ClientMessage>;
  struct Options {
    std::uint32_t protocol = kProtocolVersion;
    bool answersHello = true;                                   // false: keeps silent until the client goes
    grpc::Status refusal = grpc::Status::OK;                    // ends each session with it instead of the welcome
    std::function<grpc::Status(const v1::Command&)> onCommand;  // an error ends the session
    v1::StatusReply status;
    std::chrono::milliseconds statusDelay{0};  // before GetStatus answers
  };

  explicit FakeDaemon(Options options);
  FakeDaemon() : FakeDaemon(Options()) {}
  ~FakeDaemon() override;

  const std::string& socket() const { return socket_; }
  /// Ends all streams and stops listening, as a daemon that is killed.
  void vanish();
  /// All commands seen so far, once there are `count`; gives up after 10 s.
  std::vector<v1::Command> waitForCommands(std::size_t count);
  std::vector<std::size_t> batchSizes();
  std::string clientName();
  bool stopRequested();
  /// Of the last request to stop, in ms.
  std::uint32_t drainMs();

  grpc::Status Session(grpc::ServerContext* context, Stream* stream) override;
  grpc::Status GetStatus(grpc::ServerContext* context, const v1::StatusRequest* request,
                         v1::StatusReply* reply) override;
  grpc::Status Stop(grpc::ServerContext* context, const v1::StopRequest* request, v1::StopReply* reply) override;

 private:
  struct Held {
    v1::TensorMeta meta;
    std::string bytes;
  };
  grpc::Status execute(const v1::Command& command, std::map<std::uint64_t, Held>& tensors, Stream* stream);

  const Options options_;
  std::string folder_;
  std::string socket_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<v1::Command> commands_;
  std::vector<std::size_t> batchSizes_;
  std::string clientName_;
  bool vanished_ = false;
  bool stopRequested_ = false;
  std::uint32_t drainMs_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace dtorch
