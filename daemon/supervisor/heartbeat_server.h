#pragma once
#include <grpcpp/server.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/rpc/acceptor.h"
#include "dtorch/v1/worker.grpc.pb.h"

namespace dtorch {

/// Service dtorch.v1.Supervisor on a Unix socket of mode 0600.
/// Thread: `onBeat` is called from gRPC's threads and must not block.
class HeartbeatServer {
 public:
  /// What the worker is told in return.
  using OnBeat = std::function<v1::HeartbeatReply(const v1::Heartbeat& beat)>;

  static absl::StatusOr<std::unique_ptr<HeartbeatServer>> start(const std::string& socketPath, OnBeat onBeat);
  /// Waits for the calls in progress, which are cut off after 250 ms.
  ~HeartbeatServer();

 private:
  class Service final : public v1::Supervisor::WithCallbackMethod_Beat<v1::Supervisor::Service> {
   public:
    explicit Service(OnBeat onBeat) : onBeat_(std::move(onBeat)) {}
    grpc::ServerUnaryReactor* Beat(grpc::CallbackServerContext* context, const v1::Heartbeat* beat,
                                   v1::HeartbeatReply* reply) override;

   private:
    const OnBeat onBeat_;
  };

  HeartbeatServer(ListeningSocket socket, OnBeat onBeat);

  Service service_;
  Acceptor acceptor_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace dtorch
