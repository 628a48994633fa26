#pragma once
#include <chrono>
#include <cstddef>
#include <limits>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/session/session_channel.h"

namespace dtorch {

struct ServerOptions {
  std::string socketPath;
  std::string pidFile;     // flock'ed; holds the daemon's pid
  std::string tcpAddress;  // "127.0.0.1:4077", this host only; empty: none
  std::size_t maxMessageBytes = 64u << 20;
  /// Connections beyond are closed at once; see Acceptor.
  int maxDescriptor = std::numeric_limits<int>::max();
  /// A client that cannot be reached for so long has lost its session: it is stopped, or its network is.
  std::chrono::milliseconds lease{300'000};
};

/// The clients' gRPC server: service dtorch.v1.Dtorch, and grpc.health.v1.Health. Sockets are bound and accepted here,
/// not by gRPC, which settles double starts, stale sockets and peer credentials.
///
/// Thread: the owner's, never one of gRPC's (a listener's callback) or a signal handler: shutdown would wait for
/// itself. Errors: ALREADY_EXISTS names the pid of the daemon that holds the address; FAILED_PRECONDITION: the path is
/// something
///   other than a socket (never removed); INVALID_ARGUMENT: a path over 107 bytes; PERMISSION_DENIED: the directory is
///   another user's, or the TCP address is not of this host alone.
class Server {
 public:
  /// Binds (taking over a stale socket) without serving yet, so that a second daemon fails before it starts workers.
  /// Waits up to 1 s for the end of one that was killed.
  static absl::StatusOr<std::unique_ptr<Server>> bind(const ServerOptions& options);
  ~Server();
  /// Serves `listener`, which must outlive the server. The health service answers NOT_SERVING until setServing(true).
  absl::Status serve(SessionListener* listener);
  void setServing(bool serving);
  /// Ends the sessions of clients that have stopped in the midst of a message, at the end of their lease; the others
  /// gRPC sees. To be called several times a lease.
  void endLeases();
  /// Removes the socket, refuses new streams and ends open ones with UNAVAILABLE; those whose clients have not taken
  /// what is queued for them within `grace` are cut off. Last, it removes the pid file. Takes half a second more than
  /// `grace` at most, provided that the listener's calls return. Idempotent.
  void shutdown(std::chrono::milliseconds grace);

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtorch
