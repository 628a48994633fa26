#pragma once
#include <grpcpp/server.h>
#include <sys/types.h>

#include <chrono>
#include <limits>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "daemon/file_descriptor.h"
#include "daemon/rpc/listening_socket.h"
#include "daemon/session/session_channel.h"

namespace dtorch {

/// Accepts connections and hands each one to a gRPC server, noting who is at its other end.
///
/// gRPC 1.51 has no peer credentials of its own, but calls the peer of such a connection "fd:17", by its descriptor. As
/// long as a call of the connection lives, gRPC keeps the descriptor open, so the number is not in use again and names
/// the right entry; an entry of a closed connection is overwritten when its number comes back.
///
/// Thread: one of its own; credentials() from any, the rest from the owner's.
class Acceptor {
 public:
  /// Connections whose descriptors have numbers from `maxDescriptor` on are closed at once: what is left is for others.
  explicit Acceptor(std::vector<ListeningSocket> sockets, int maxDescriptor = std::numeric_limits<int>::max())
      : sockets_(std::move(sockets)), maxDescriptor_(maxDescriptor) {}
  ~Acceptor() { stop(); }
  /// `server` must be started, and outlive shutdownServer().
  absl::Status start(grpc::Server* server);
  /// Ends the thread and closes the listening sockets. Idempotent.
  void stop();
  /// After stop(): shuts the server down. Calls have `grace` to end, then they are cancelled, and what is
  /// still connected 250 ms later is cut off: gRPC does not close a connection in the middle of a write, so that a
  /// client that does not read would hold it up for ever.
  void shutdownServer(std::chrono::milliseconds grace);

  /// Whether something has been sent to the other end of a call whose ServerContext::peer() is `peer`, and not been
  /// taken there; the call must not have ended.
  bool hasUnread(const std::string& peer) const;
  /// Ends the connection of such a call.
  void cut(const std::string& peer) const;

  /// Who is at the other end of a call whose ServerContext::peer() is `peer`; the call must not have ended.
  PeerCredentials credentials(const std::string& peer) const;

 private:
  struct Connection {
    PeerCredentials peer;
    ino_t inode = 0;  // of the socket: tells whether the descriptor is still this connection's
  };

  void run();
  /// False when no descriptor or memory is left.
  bool acceptOne(int listening);
  void cutConnections();
  /// A descriptor of the connection of its own; invalid: gRPC has closed it.
  static FileDescriptor duplicate(int fd, const Connection& connection);
  FileDescriptor duplicate(const std::string& peer) const;

  std::vector<ListeningSocket> sockets_;
  const int maxDescriptor_;
  grpc::Server* server_ = nullptr;
  FileDescriptor wake_;
  std::thread thread_;
  mutable std::mutex mutex_;
  std::unordered_map<int, Connection> connections_;  // by descriptor; guarded by mutex_
};

}  // namespace dtorch
