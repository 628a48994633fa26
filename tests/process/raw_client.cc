#include "tests/process/raw_client.h"

namespace dtorch {

RawClient::RawClient(const DaemonFixture& daemon)
    : channel_(grpc::CreateChannel("unix:" + daemon.socket(), grpc::InsecureChannelCredentials())), stub_(channel_) {
  context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  call_ = stub_.PrepareCall(&context_, "/dtorch.v1.Dtorch/Session", &queue_);
  call_->StartCall(tag());
  next();
}

RawClient::~RawClient() {
  context_.TryCancel();
  queue_.Shutdown();
  void* ignored = nullptr;
  bool ok = false;
  while (queue_.Next(&ignored, &ok)) {
  }
}

bool RawClient::sendBytes(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  call_->Write(grpc::ByteBuffer(&slice, 1), tag());
  return next();
}

bool RawClient::send(const v1::Command& command) {
  v1::ClientMessage message;
  *message.mutable_batch()->add_commands() = command;
  return send(message);
}

void RawClient::hello(std::uint32_t protocol) {
  v1::ClientMessage message;
  message.mutable_hello()->set_protocol(protocol);
  send(message);
}

void RawClient::doneSending() {
  call_->WritesDone(tag());
  next();
}

bool RawClient::read(v1::DaemonMessage* message) {
  grpc::ByteBuffer buffer;
  call_->Read(&buffer, tag());
  if (!next()) return false;
  grpc::Slice slice;
  return buffer.DumpToSingleSlice(&slice).ok() &&
         message->ParseFromArray(slice.begin(), static_cast<int>(slice.size()));
}

bool RawClient::readResult(std::uint64_t future, v1::FutureResult* result) {
  v1::DaemonMessage message;
  while (read(&message)) {
    if (!message.has_result() || message.result().future() != future) continue;
    *result = message.result();
    return true;
  }
  return false;
}

grpc::Status RawClient::end() {
  v1::DaemonMessage message;
  while (read(&message)) {
  }
  grpc::Status status;
  call_->Finish(&status, tag());
  next();
  return status;
}

bool RawClient::next() {
  void* ignored = nullptr;
  bool ok = false;
  return queue_.Next(&ignored, &ok) && ok;
}

}  // namespace dtorch
