#pragma once
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/future/local_socket.h"
#include "comm/future/snapshot.h"
#include "comm/future/value_protocol.h"

namespace dtorch {

/// Gives the values that this process computes to processes of its host, over a Unix socket: small ones in the message,
/// large ones by the descriptor of their segment. Who asks before there is a value is answered when there is one; a
/// value stays until it is withdrawn, and may be asked for any number of times. Nobody waits for a client that does not
/// read.
///
/// Thread: safe. Owns: one thread, "dtorch-values", and the socket's file.
class ValueServer {
 public:
  /// Listens at `path`, for this user alone. Errors: those of LocalSocket::listen().
  static absl::StatusOr<std::unique_ptr<ValueServer>> create(const std::string& path);
  /// Whoever waits gets UNAVAILABLE.
  ~ValueServer();

  /// Makes a value to come known.
  ValueTicket announce();
  /// Answers who asked, and who will ask. FAILED_PRECONDITION: it has a value. NOT_FOUND: never announced, or
  /// withdrawn.
  absl::Status resolve(std::uint64_t id, SnapshotOr value);
  /// Forgets a value. Whoever waits for it gets ABORTED, whoever asks later NOT_FOUND.
  void withdraw(std::uint64_t id);

 private:
  struct Outgoing {
    std::string message;
    /// Kept until its descriptor is sent.
    std::shared_ptr<Snapshot> value;
  };
  struct Connection {
    LocalSocket socket;
    std::deque<Outgoing> queue;
    bool gone = false;
  };
  struct Waiter {
    std::weak_ptr<Connection> connection;
    std::uint64_t request = 0;
  };
  struct Entry {
    std::vector<Waiter> waiters;
    std::unique_ptr<SnapshotOr> value;
  };

  ValueServer(std::string path, LocalSocket listener, int wake);
  void loop();
  void wakeLoop() const;
  /// False when no descriptor or memory is left.
  bool acceptLocked();
  void readLocked(const std::shared_ptr<Connection>& connection);
  static void replyLocked(Connection& connection, std::uint64_t request, const SnapshotOr& value);
  static void flushLocked(Connection& connection);

  const std::string path_;
  const LocalSocket listener_;
  const int wake_;

  std::mutex mutex_;
  std::unordered_map<std::uint64_t, Entry> entries_;
  std::list<std::shared_ptr<Connection>> connections_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace dtorch
