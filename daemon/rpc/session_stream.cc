#include "daemon/rpc/session_stream.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include "absl/strings/str_cat.h"
#include "daemon/rpc/protocol_status.h"
#include "proto/limits.h"

namespace dtorch {
namespace {

constexpr std::size_t kDrained = 1u << 20;
// Smaller messages cannot hold too many commands.
constexpr std::size_t kCountedBytes = 2 * kMaxCommands;

// One copy, from the message into gRPC's slices. Fails for messages of 2 GiB only, and values come in chunks.
grpc::ByteBuffer serialize(const v1::DaemonMessage& message) {
  grpc::ByteBuffer bytes;
  bool owned = false;
  grpc::SerializationTraits<v1::DaemonMessage>::Serialize(message, &bytes, &owned);
  return bytes;
}

// The commands in a message's batch. What does not parse counts for nothing: the parser will say so.
std::size_t countCommands(const grpc::ByteBuffer& bytes) {
  using google::protobuf::internal::WireFormatLite;
  grpc::ByteBuffer same(bytes);  // shares the slices
  grpc::ProtoBufferReader reader(&same);
  google::protobuf::io::CodedInputStream in(&reader);
  constexpr auto kBatch =
      WireFormatLite::MakeTag(v1::ClientMessage::kBatchFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
  constexpr auto kCommand =
      WireFormatLite::MakeTag(v1::CommandBatch::kCommandsFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
  std::size_t commands = 0;
  while (const std::uint32_t tag = in.ReadTag()) {
    std::uint32_t length = 0;
    if (tag == kBatch && in.ReadVarint32(&length)) continue;  // its fields are looked at, too
    if (tag == kCommand) ++commands;
    if (!WireFormatLite::SkipField(&in, tag)) break;
  }
  return commands;
}

}  // namespace

void SessionStream::open(std::shared_ptr<SessionChannel> self) {
  open_ = true;
  id_ = listener_->onOpen(std::move(self));
  {
    const std::lock_guard lock(mutex_);
    held_ = true;
  }
  readNext();  // not if the listener has refused; gRPC starts it when it has been given this reactor
}

void SessionStream::send(std::shared_ptr<const v1::DaemonMessage> message) {
  {
    const std::lock_guard lock(mutex_);
    if (closing_) return;
    const std::size_t bytes = message->ByteSizeLong();
    queue_.push_back({std::move(message), bytes});
    if ((queuedBytes_ += bytes) > kDrained) above_ = true;
  }
  advance();
}

void SessionStream::readNext() {
  const std::lock_guard lock(mutex_);
  if (!held_ || closing_) return;
  held_ = false;
  StartRead(&incoming_);
}

void SessionStream::close(const absl::Status& status) {
  {
    const std::lock_guard lock(mutex_);
    closedHere_ = true;
  }
  finish(status);
}

void SessionStream::finish(const absl::Status& status) {
  {
    const std::lock_guard lock(mutex_);
    if (closing_) return;
    closing_ = status;
  }
  advance();
}

void SessionStream::OnReadDone(bool ok) {
  if (!ok) return finish(absl::OkStatus());  // the client has said its last; a broken connection is OnCancel's
  ++received_;
  auto request = std::make_unique<ClientRequest>();
  request->bytes = incoming_.Length();
  if (request->bytes > maxMessageBytes_) {
    return close(absl::ResourceExhaustedError(absl::StrCat("message ", received_, " has ", request->bytes,
                                                           " bytes; session.max_message = ", maxMessageBytes_)));
  }
  if (request->bytes > kCountedBytes && countCommands(incoming_) > kMaxCommands) {
    return close(absl::ResourceExhaustedError(
        absl::StrCat("message ", received_, " holds more than ", kMaxCommands, " commands: send several")));
  }
  if (!grpc::SerializationTraits<v1::ClientMessage>::Deserialize(&incoming_, request->message()).ok()) {
    return close(absl::InvalidArgumentError(absl::StrCat("message ", received_, " (", request->bytes,
                                                         " bytes) does not parse as dtorch.v1.ClientMessage")));
  }
  {
    const std::lock_guard lock(mutex_);
    if (closing_) return;
    held_ = true;
    ++progress_;
  }
  listener_->onRequest(id_, std::move(request));
}

void SessionStream::OnWriteDone(bool ok) {
  bool drained = false;
  {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    ++progress_;
    queuedBytes_ -= outgoingBytes_;
    if (!ok) abandonLocked(absl::CancelledError("the client is gone"));
    drained = above_ && queuedBytes_ <= kDrained && !closing_;
    if (drained) above_ = false;
  }
  if (drained) listener_->onDrained(id_);
  advance();
}

void SessionStream::cutOffIfUnread(std::chrono::milliseconds limit) {
  // With the mutex, so that the stream, and with it the connection's name, is there meanwhile.
  const std::lock_guard lock(mutex_);
  if (done_) return;
  const auto now = std::chrono::steady_clock::now();
  if (std::exchange(progressSeen_, progress_) != progress_ || !connection_.hasUnread()) {
    unreadSince_.reset();
  } else if (!unreadSince_) {
    unreadSince_ = now;
  } else if (now - *unreadSince_ >= limit) {
    connection_.cut();
  }
}

void SessionStream::OnCancel() {
  {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    abandonLocked(absl::CancelledError("the client is gone, or this daemon is stopping"));
  }
  advance();
}

void SessionStream::OnDone() {
  bool lost = false;
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
    lost = cancelled_ && !closedHere_;
  }
  if (open_) listener_->onClosed(id_, lost);
  const auto onDone = std::move(onDone_);  // outlives this object
  onDone(this);
}

void SessionStream::advance() {
  Outgoing next;
  bool more = false;
  {
    const std::lock_guard lock(mutex_);
    if (writing_ || finished_) return;
    if (!queue_.empty()) {
      next = std::move(queue_.front());
      queue_.pop_front();
      more = !queue_.empty();
      writing_ = true;
    } else if (closing_) {
      finished_ = true;
    } else {
      return;
    }
  }
  if (!next.message) return Finish(toGrpc(*closing_));
  outgoing_ = serialize(*next.message);
  outgoingBytes_ = next.bytes;
  // With another one behind it a message may wait in gRPC's buffer, so that both leave in one system call.
  grpc::WriteOptions options;
  if (more) options.set_buffer_hint();
  StartWrite(&outgoing_, options);
}

void SessionStream::abandonLocked(const absl::Status& why) {
  for (const Outgoing& each : queue_) queuedBytes_ -= each.bytes;
  queue_.clear();
  if (!closing_) closing_ = why;
}

}  // namespace dtorch
