#pragma once
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "daemon/session/session_channel.h"

namespace dtorch {

/// One client stream: gRPC's reactor on one side, the controller's SessionChannel on the other.
///
/// Lifetime: OpenStreams owns it until gRPC is done with it (OnDone); the controller's own reference may outlive that,
///   its calls then have no effect. RPC-1: Finish is called exactly once, after which no read or write starts; OnDone
///   follows when all reactions have returned, so onClosed is the last call of the listener.
/// Thread: safe. The listener is never called with the mutex held.
class SessionStream final : public SessionChannel, public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  struct Connection {
    std::function<bool()> hasUnread;  // the client has not taken all that was sent to it
    std::function<void()> cut;
  };
  /// `onDone` is told when gRPC is done with this object, and may delete it.
  /// `connection`: of the stream.
  SessionStream(SessionListener* listener, PeerCredentials peer, std::size_t maxMessageBytes, Connection connection,
                std::function<void(SessionStream*)> onDone)
      : listener_(listener),
        peer_(peer),
        maxMessageBytes_(maxMessageBytes),
        connection_(std::move(connection)),
        onDone_(std::move(onDone)) {}
  /// Tells the listener and reads the first message. `self` is this stream. Without it, the listener never hears of it.
  void open(std::shared_ptr<SessionChannel> self);

  void send(std::shared_ptr<const v1::DaemonMessage> message) override;
  std::size_t queuedBytes() const override { return queuedBytes_; }
  void readNext() override;
  void close(const absl::Status& status) override;
  PeerCredentials peer() const override { return peer_; }
  /// Ends the stream if nothing has come and nothing gone for so long, though the client had something to take. To be
  /// called several times in that time.
  void cutOffIfUnread(std::chrono::milliseconds limit);

 private:
  struct Outgoing {
    std::shared_ptr<const v1::DaemonMessage> message;
    std::size_t bytes = 0;
  };

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  void finish(const absl::Status& status);
  /// Starts the next write, or Finish when nothing is left to write and the stream shall end; no effect while a write
  /// is on its way.
  void advance();
  /// Drops what is queued: nobody will read it.
  void abandonLocked(const absl::Status& why);

  SessionListener* const listener_;
  const PeerCredentials peer_;
  const std::size_t maxMessageBytes_;
  const Connection connection_;
  std::function<void(SessionStream*)> onDone_;
  SessionId id_ = 0;
  bool open_ = false;

  grpc::ByteBuffer incoming_;   // belongs to the read that is on its way
  std::uint64_t received_ = 0;  // messages; reads are one at a time
  grpc::ByteBuffer outgoing_;   // belongs to the write that is on its way
  std::size_t outgoingBytes_ = 0;
  std::atomic<std::size_t> queuedBytes_ = 0;

  std::mutex mutex_;            // guards what follows
  std::uint64_t progress_ = 0;  // reads and writes done
  std::uint64_t progressSeen_ = 0;
  std::optional<std::chrono::steady_clock::time_point> unreadSince_;  // without progress
  std::deque<Outgoing> queue_;
  bool held_ = false;     // the listener has a request: the next read waits for readNext()
  bool writing_ = false;  // a write is on its way: outgoing_ is taken
  bool finished_ = false;
  bool cancelled_ = false;
  bool closedHere_ = false;  // by close()
  bool done_ = false;
  bool above_ = false;                   // queuedBytes_ was above the mark of onDrained
  std::optional<absl::Status> closing_;  // set once; what Finish will say
};

}  // namespace dtorch
