#pragma once
#include <grpcpp/server.h>

#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "daemon/rpc/file_descriptor.h"
#include "daemon/rpc/listening_socket.h"
#include "daemon/rpc/session_channel.h"

namespace dtorch {

/// Accepts connections and hands each one to a gRPC server, noting who is at its other end.
///
/// gRPC 1.51 has no peer credentials of its own, but calls the peer of such a connection "fd:17", by its descriptor. As
/// long as a call of the connection lives, gRPC keeps the descriptor open, so the number is not in use again and names
/// the right entry; an entry of a closed connection is overwritten when its number comes back.
///
/// Thread: one of its own; peer() from any.
class Acceptor {
 public:
  explicit Acceptor(std::vector<ListeningSocket> sockets) : sockets_(std::move(sockets)) {}
  ~Acceptor() { stop(); }
  /// `server` must be started, and outlive stop().
  absl::Status start(grpc::Server* server);
  /// Ends the thread and closes the listening sockets. Idempotent.
  void stop();

  /// Who is at the other end of a call whose ServerContext::peer() is `peer`; the call must not have ended.
  PeerCredentials credentials(const std::string& peer) const;

 private:
  void run(grpc::Server* server);
  /// False when no descriptor or memory is left.
  bool acceptOne(int listening, grpc::Server* server);

  std::vector<ListeningSocket> sockets_;
  FileDescriptor wake_;
  std::thread thread_;
  mutable std::mutex mutex_;
  std::unordered_map<std::string, PeerCredentials> peers_;  // by peer(), guarded by mutex_
};

}  // namespace dtorch
