#pragma once
#include <google/protobuf/arena.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "core/ids.h"
#include "dtorch/v1/client.pb.h"

namespace dtorch {

/// Who is at the other end of a client's connection, by SO_PEERCRED; -1 where the transport does not say (TCP).
struct PeerCredentials {
  std::int64_t pid = -1;
  std::int64_t uid = -1;
  std::int64_t gid = -1;
};

/// A message from a client together with the arena that holds it.
class ClientRequest {
 public:
  ClientRequest() : message_(google::protobuf::Arena::CreateMessage<v1::ClientMessage>(&arena_)) {}
  ClientRequest(const ClientRequest&) = delete;
  ClientRequest& operator=(const ClientRequest&) = delete;
  v1::ClientMessage* message() { return message_; }
  const v1::ClientMessage& message() const { return *message_; }
  std::size_t bytes = 0;  // on the wire

 private:
  google::protobuf::Arena arena_;
  v1::ClientMessage* message_;
};

/// The controller's end of one client stream. Thread: safe; every call returns at once.
class SessionChannel {
 public:
  virtual ~SessionChannel() = default;
  /// Queues a message; messages leave in order. Ignored after close.
  virtual void send(std::shared_ptr<const v1::DaemonMessage> message) = 0;
  /// Bytes queued by send() and not yet written: the controller holds large values back while there are many.
  virtual std::size_t queuedBytes() const = 0;
  /// The request that was handed over has been dealt with: read the next one. Until then the client is held back by
  /// gRPC's own flow control.
  virtual void readNext() = 0;
  /// Ends the stream with `status` after what is queued has been sent. Idempotent.
  virtual void close(const absl::Status& status) = 0;
  virtual PeerCredentials peer() const = 0;
};

/// What the RPC layer calls; implemented by the controller. Thread: called from gRPC's threads, which also serve other
/// clients: a call takes some 20 ms at most.
class SessionListener {
 public:
  virtual ~SessionListener() = default;
  /// A client has opened a stream. The returned number names it in the calls below.
  virtual SessionId onOpen(std::shared_ptr<SessionChannel> channel) = 0;
  /// One parsed message; no other follows until channel->readNext().
  virtual void onRequest(SessionId session, std::unique_ptr<ClientRequest> request) = 0;
  /// send() queue has drained below 1 MiB after having been above it.
  virtual void onDrained(SessionId session) = 0;
  /// The stream has ended; called exactly once, last. `lost`: without the client's having closed it, or this side.
  virtual void onClosed(SessionId session, bool lost) = 0;
  /// Must answer within 1 s whatever the workers do.
  virtual v1::StatusReply status(const v1::StatusRequest& request) = 0;
  /// Cancels what the session has called before its CancelCalls `serial`, if the token is its own.
  virtual void onCancel(SessionId session, std::uint64_t token, std::uint64_t serial) = 0;
  /// Asks for an orderly end of the daemon, the sessions of which may go on for `drain`; returns at once.
  virtual void requestStop(std::chrono::milliseconds drain) = 0;
};

}  // namespace dtorch
