#include "tests/client/fake_daemon.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>

namespace dtorch {
namespace {

constexpr std::chrono::seconds kPatience(10);
constexpr std::size_t kChunkBytes = 1u << 20;

}  // namespace

FakeDaemon::FakeDaemon(Options options) : options_(std::move(options)) {
  std::string pattern = "/tmp/dtorch-fake-XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  folder_ = pattern;
  socket_ = folder_ + "/dtorchd.sock";
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix:" + socket_, grpc::InsecureServerCredentials());
  builder.SetMaxReceiveMessageSize(64 << 20);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) throw std::runtime_error("the fake daemon cannot listen at " + socket_);
}

FakeDaemon::~FakeDaemon() {
  vanish();
  ::rmdir(folder_.c_str());
}

void FakeDaemon::vanish() {
  {
    const std::lock_guard lock(mutex_);
    vanished_ = true;
    changed_.notify_all();
  }
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
  ::unlink(socket_.c_str());
}

std::vector<v1::Command> FakeDaemon::waitForCommands(std::size_t count) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kPatience, [&] { return commands_.size() >= count; });
  return commands_;
}

std::vector<std::size_t> FakeDaemon::batchSizes() {
  const std::lock_guard lock(mutex_);
  return batchSizes_;
}

std::string FakeDaemon::clientName() {
  const std::lock_guard lock(mutex_);
  return clientName_;
}

bool FakeDaemon::stopRequested() {
  const std::lock_guard lock(mutex_);
  return stopRequested_;
}

std::uint32_t FakeDaemon::drainMs() {
  const std::lock_guard lock(mutex_);
  return drainMs_;
}

grpc::Status FakeDaemon::Session(grpc::ServerContext* /*context*/, Stream* stream) {
  v1::ClientMessage message;
  if (!stream->Read(&message) || !message.has_hello()) return {grpc::StatusCode::INVALID_ARGUMENT, "no hello"};
  {
    std::unique_lock lock(mutex_);
    clientName_ = message.hello().client();
    // A stream that is not answered stays open until the client cancels it, which Shutdown sees to at the latest.
    if (!options_.answersHello) changed_.wait_for(lock, kPatience, [this] { return vanished_; });
  }
  if (!options_.answersHello) return grpc::Status::CANCELLED;
  if (!options_.refusal.ok()) return options_.refusal;
  v1::DaemonMessage welcome;
  welcome.mutable_welcome()->set_protocol(options_.protocol);
  welcome.mutable_welcome()->set_session(7);
  welcome.mutable_welcome()->set_version("9.9.9");
  welcome.mutable_welcome()->set_world_size(2);
  welcome.mutable_welcome()->set_device_type(v1::DEVICE_TYPE_CPU);
  welcome.mutable_welcome()->set_daemon_pid(::getpid());
  stream->Write(welcome);

  std::map<std::uint64_t, Held> tensors;
  while (stream->Read(&message)) {
    {
      const std::lock_guard lock(mutex_);
      batchSizes_.push_back(static_cast<std::size_t>(message.batch().commands_size()));
      commands_.insert(commands_.end(), message.batch().commands().begin(), message.batch().commands().end());
      changed_.notify_all();
    }
    for (const v1::Command& command : message.batch().commands()) {
      if (grpc::Status status = execute(command, tensors, stream); !status.ok()) return status;
    }
  }
  return grpc::Status::OK;
}

grpc::Status FakeDaemon::execute(const v1::Command& command, std::map<std::uint64_t, Held>& tensors, Stream* stream) {
  if (options_.onCommand) {
    if (grpc::Status status = options_.onCommand(command); !status.ok()) return status;
  }
  v1::DaemonMessage answer;
  v1::FutureResult* result = answer.mutable_result();
  if (command.has_put()) {
    tensors[command.put().tensor()] = {command.put().meta(), command.put().inline_bytes()};
  } else if (command.has_put_chunk()) {
    Held& held = tensors[command.put_chunk().tensor()];
    if (held.bytes.size() != command.put_chunk().offset())
      return {grpc::StatusCode::INVALID_ARGUMENT, "a hole in a put"};
    held.bytes += command.put_chunk().data();
  } else if (command.has_synchronize()) {
    result->set_future(command.synchronize().future());
    result->set_done(true);
    stream->Write(answer);
  } else if (command.has_get()) {
    result->set_future(command.get().future());
    const auto it = tensors.find(command.get().tensor());
    if (it == tensors.end()) {
      result->mutable_error()->set_code(static_cast<int>(grpc::StatusCode::NOT_FOUND));
      result->mutable_error()->set_message("this daemon computes nothing");
      result->mutable_error()->set_operator_name("aten::anything");
      result->set_done(true);
      stream->Write(answer);
      return grpc::Status::OK;
    }
    const Held& held = it->second;
    *result->mutable_meta() = held.meta;
    for (std::size_t offset = 0; offset == 0 || offset < held.bytes.size(); offset += kChunkBytes) {
      result->set_offset(offset);
      result->set_data(held.bytes.substr(offset, kChunkBytes));
      result->set_done(offset + kChunkBytes >= held.bytes.size());
      stream->Write(answer);
      result->clear_meta();
    }
  }
  return grpc::Status::OK;
}

grpc::Status FakeDaemon::GetStatus(grpc::ServerContext* context, const v1::StatusRequest* request,
                                   v1::StatusReply* reply) {
  if (request->protocol() != options_.protocol) return {grpc::StatusCode::FAILED_PRECONDITION, "another protocol"};
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, options_.statusDelay, [&] { return vanished_ || context->IsCancelled(); });
  *reply = options_.status;
  reply->set_protocol(options_.protocol);
  return grpc::Status::OK;
}

grpc::Status FakeDaemon::Stop(grpc::ServerContext* /*context*/, const v1::StopRequest* request, v1::StopReply* reply) {
  const std::lock_guard lock(mutex_);
  stopRequested_ = true;
  drainMs_ = request->drain_ms();
  changed_.notify_all();
  reply->set_pid(options_.status.pid());
  return grpc::Status::OK;
}

}  // namespace dtorch
