#include "daemon/rpc/server.h"

#include <grpc/compression.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

#include "daemon/rpc/acceptor.h"
#include "daemon/rpc/listening_socket.h"
#include "daemon/rpc/open_streams.h"
#include "daemon/rpc/pid_file.h"
#include "daemon/rpc/protocol_status.h"
#include "dtorch/v1/client.grpc.pb.h"
#include "proto/grpc_lifetime.h"

namespace dtorch {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPredecessorsEnd(1000);

// The session stream is raw: generated code takes an unparsable message for the normal end of the stream.
class Service final
    : public v1::Dtorch::WithRawCallbackMethod_Session<v1::Dtorch::WithCallbackMethod_GetStatus<
          v1::Dtorch::WithCallbackMethod_Stop<v1::Dtorch::WithCallbackMethod_Cancel<v1::Dtorch::Service>>>> {
 public:
  Service(SessionListener* listener, const Acceptor* acceptor, std::size_t maxMessageBytes)
      : listener_(listener), acceptor_(acceptor), maxMessageBytes_(maxMessageBytes) {}
  OpenStreams& streams() { return streams_; }

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Session(grpc::CallbackServerContext* context) override {
    const std::string peer = context->peer();
    return streams_.add(listener_, acceptor_->credentials(peer), maxMessageBytes_,
                        {[this, peer] { return acceptor_->hasUnread(peer); }, [this, peer] { acceptor_->cut(peer); }});
  }

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context, const v1::StatusRequest* request,
                                      v1::StatusReply* reply) override {
    const absl::Status protocol = checkProtocol("the client", request->protocol());
    if (protocol.ok()) *reply = listener_->status(*request);
    return finish(context, protocol);
  }

  grpc::ServerUnaryReactor* Cancel(grpc::CallbackServerContext* context, const v1::CancelRequest* request,
                                   v1::CancelReply*) override {
    const absl::Status protocol = checkProtocol("the client", request->protocol());
    if (protocol.ok()) listener_->onCancel(request->session(), request->token(), request->serial());
    return finish(context, protocol);
  }

  grpc::ServerUnaryReactor* Stop(grpc::CallbackServerContext* context, const v1::StopRequest* request,
                                 v1::StopReply* reply) override {
    const absl::Status protocol = checkProtocol("the client", request->protocol());
    reply->set_pid(::getpid());
    grpc::ServerUnaryReactor* reactor = finish(context, protocol);
    if (protocol.ok()) listener_->requestStop(milliseconds(request->drain_ms()));
    return reactor;
  }

 private:
  static grpc::ServerUnaryReactor* finish(grpc::CallbackServerContext* context, const absl::Status& status) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(toGrpc(status));
    return reactor;
  }

  SessionListener* const listener_;
  const Acceptor* const acceptor_;
  const std::size_t maxMessageBytes_;
  OpenStreams streams_;
};

std::string directoryOf(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  return slash == std::string::npos ? "" : path.substr(0, std::max<std::size_t>(slash, 1));
}

}  // namespace

class Server::Impl {
 public:
  Impl(const ServerOptions& options, PidFile pidFile, std::vector<ListeningSocket> sockets)
      : options_(options), pidFile_(std::move(pidFile)), acceptor_(std::move(sockets), options.maxDescriptor) {}
  ~Impl() { shutdown(milliseconds(0)); }

  absl::Status serve(SessionListener* listener);
  void setServing(bool serving) {
    const std::lock_guard lock(servingMutex_);
    if (server_ != nullptr && !stopping_) server_->GetHealthCheckService()->SetServingStatus(serving);
  }
  void endLeases() {
    if (service_ != nullptr) service_->streams().cutOffUnread(options_.lease);
  }
  void shutdown(milliseconds grace);

 private:
  const ServerOptions options_;
  // Destroyed in reverse order: the pid file goes last, after the sockets that it protects.
  std::optional<PidFile> pidFile_;
  Acceptor acceptor_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::Server> server_;
  std::mutex servingMutex_;  // setServing() comes from any thread
  bool stopping_ = false;    // guarded by it
};

absl::Status Server::Impl::serve(SessionListener* listener) {
  keepGrpc();
  service_ = std::make_unique<Service>(listener, &acceptor_, options_.maxMessageBytes);
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  builder.RegisterService(service_.get());
  // Up to twice the limit the stream itself refuses, with the name of the limit; gRPC knows none.
  builder.SetMaxReceiveMessageSize(
      static_cast<int>(std::min<std::size_t>(2 * options_.maxMessageBytes, std::numeric_limits<int>::max())));
  builder.SetMaxSendMessageSize(-1);  // ours are made in bounded chunks
  // A compressed message may unfold to far more than its own size: none of our clients sends one.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 1024);
  // Clients may ping every 10 s.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // A client's death closes its socket. One that is stopped, or beyond a network that is no more, does not answer
  // pings.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(options_.lease.count() / 4));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, static_cast<int>(options_.lease.count()));
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) return absl::InternalError("gRPC did not start its server; its log says why");
  setServing(false);
  return acceptor_.start(server_.get());
}

void Server::Impl::shutdown(milliseconds grace) {
  // For whatever is left when the sessions have ended: health watchers, idle connections, the answer to Stop.
  constexpr milliseconds kRest(250);
  acceptor_.stop();
  if (server_ != nullptr) {
    setServing(false);
    {
      const std::lock_guard lock(servingMutex_);
      stopping_ = true;
    }
    service_->streams().close(absl::UnavailableError("dtorchd is stopping"));
    service_->streams().waitUntilEmpty(std::chrono::steady_clock::now() + grace);
    acceptor_.shutdownServer(std::min(kRest, grace));
    server_.reset();
  }
  pidFile_.reset();
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

absl::StatusOr<std::unique_ptr<Server>> Server::bind(const ServerOptions& options) {
  for (const std::string& path : {options.socketPath, options.pidFile}) {
    if (absl::Status status = ensureRuntimeDirectory(directoryOf(path)); !status.ok()) return status;
  }
  absl::StatusOr<PidFile> pidFile = PidFile::acquire(options.pidFile, kPredecessorsEnd);
  if (!pidFile.ok()) return pidFile.status();
  std::vector<ListeningSocket> sockets;
  auto unixSocket = ListeningSocket::bindUnix(options.socketPath, 0660);
  if (!unixSocket.ok()) return unixSocket.status();
  sockets.push_back(*std::move(unixSocket));
  if (!options.tcpAddress.empty()) {
    auto tcpSocket = ListeningSocket::bindLoopback(options.tcpAddress);
    if (!tcpSocket.ok()) return tcpSocket.status();
    sockets.push_back(*std::move(tcpSocket));
  }
  return std::unique_ptr<Server>(new Server(std::make_unique<Impl>(options, *std::move(pidFile), std::move(sockets))));
}

absl::Status Server::serve(SessionListener* listener) { return impl_->serve(listener); }
void Server::setServing(bool serving) { impl_->setServing(serving); }
void Server::endLeases() { impl_->endLeases(); }
void Server::shutdown(milliseconds grace) { impl_->shutdown(grace); }

}  // namespace dtorch
