#include "daemon/supervisor/heartbeat_server.h"

#include <grpcpp/server_builder.h>

#include <chrono>
#include <utility>
#include <vector>

#include "daemon/rpc/protocol_status.h"
#include "proto/grpc_lifetime.h"

namespace dtorch {
namespace {

std::vector<ListeningSocket> single(ListeningSocket socket) {
  std::vector<ListeningSocket> sockets;
  sockets.push_back(std::move(socket));
  return sockets;
}

}  // namespace

grpc::ServerUnaryReactor* HeartbeatServer::Service::Beat(grpc::CallbackServerContext* context,
                                                         const v1::Heartbeat* beat, v1::HeartbeatReply* reply) {
  const absl::Status protocol = checkProtocol("the worker", beat->protocol());
  if (protocol.ok()) *reply = onBeat_(*beat);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(toGrpc(protocol));
  return reactor;
}

HeartbeatServer::HeartbeatServer(ListeningSocket socket, OnBeat onBeat)
    : service_(std::move(onBeat)), acceptor_(single(std::move(socket))) {}

absl::StatusOr<std::unique_ptr<HeartbeatServer>> HeartbeatServer::start(const std::string& socketPath, OnBeat onBeat) {
  auto socket = ListeningSocket::bindUnix(socketPath, 0600);
  if (!socket.ok()) return socket.status();
  std::unique_ptr<HeartbeatServer> result(new HeartbeatServer(*std::move(socket), std::move(onBeat)));
  keepGrpc();
  grpc::ServerBuilder builder;
  builder.RegisterService(&result->service_);
  builder.SetMaxReceiveMessageSize(4 << 20);  // the stacks of a worker's threads are at most half as large
  result->server_ = builder.BuildAndStart();
  if (result->server_ == nullptr)
    return absl::InternalError("gRPC did not start the heartbeat server; its log says why");
  if (absl::Status status = result->acceptor_.start(result->server_.get()); !status.ok()) return status;
  return result;
}

HeartbeatServer::~HeartbeatServer() {
  acceptor_.stop();
  acceptor_.shutdownServer(std::chrono::milliseconds(250));
}

}  // namespace dtorch
