#include "client/cpp/connection.h"

#include <pthread.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/address.h"
#include "proto/version.h"

namespace dtorch {
namespace {

constexpr std::chrono::seconds kCloseTimeout(2);
/// For the stream's status, once nothing more can be read.
constexpr std::chrono::seconds kFinishTimeout(1);

/// The status that tells a user how a stream ended.
absl::Status streamError(const grpc::Status& status, const std::string& address) {
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      return absl::UnavailableError(absl::StrCat("dtorchd at ", address, " has closed the session"));
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::UNKNOWN:
    case grpc::StatusCode::INTERNAL:
      return absl::UnavailableError(
          absl::StrCat("the connection to dtorchd at ", address, " is lost: ", status.error_message()));
    default:
      return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                          absl::StrCat("dtorchd at ", address, " has ended the session: ", status.error_message()));
  }
}

}  // namespace

Connection::Connection(std::string address, std::string client, std::shared_ptr<SessionCore> core)
    : address_(std::move(address)),
      core_(std::move(core)),
      stub_(v1::Dtorch::NewStub(makeChannel(address_))),
      reader_([this, client = std::move(client)] { readLoop(client); }) {}

Connection::~Connection() {
  closing_ = true;
  core_->queue().finish();
  if (ended_.get_future().wait_for(kCloseTimeout) != std::future_status::ready) context_.TryCancel();
  reader_.join();
}

absl::StatusOr<v1::Welcome> Connection::welcome(std::chrono::steady_clock::time_point deadline) {
  std::future<absl::StatusOr<v1::Welcome>> future = welcomed_.get_future();
  if (future.wait_until(deadline) == std::future_status::ready) return future.get();
  context_.TryCancel();
  return absl::DeadlineExceededError(absl::StrCat("dtorchd at ", address_, " did not answer in time"));
}

absl::StatusOr<v1::Welcome> Connection::greet(const std::string& client) {
  stream_ = stub_->Session(&context_);
  v1::ClientMessage hello;
  hello.mutable_hello()->set_protocol(kProtocolVersion);
  hello.mutable_hello()->set_client(client);
  v1::DaemonMessage answer;
  if (!stream_->Write(hello) || !stream_->Read(&answer)) {
    const grpc::Status status = finish();
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE) return streamError(status, address_);
    return absl::UnavailableError(absl::StrCat("no dtorchd answers at ", address_, " (", status.error_message(),
                                               "): start dtorchd, or name its socket in DTORCH_SOCKET"));
  }
  if (answer.welcome().protocol() == kProtocolVersion) return answer.welcome();
  context_.TryCancel();
  return absl::FailedPreconditionError(
      absl::StrCat("this client (", kDtorchVersion, ") speaks protocol ", kProtocolVersion, ", dtorchd at ", address_,
                   " (", answer.welcome().version(), ") speaks ", answer.welcome().protocol(),
                   ": install the same release on both sides"));
}

void Connection::readLoop(const std::string& client) {
  ::pthread_setname_np(::pthread_self(), "dtorch-read");
  absl::StatusOr<v1::Welcome> welcome = greet(client);
  absl::Status cause = welcome.status();
  welcomed_.set_value(std::move(welcome));
  if (cause.ok()) {
    sender_ = std::thread([this] { sendLoop(); });
    v1::DaemonMessage message;
    while (stream_->Read(&message)) {
      if (message.has_result()) core_->onResult(message.result());
    }
    cause = streamError(finish(), address_);
    if (closing_) cause = absl::UnavailableError("the session was closed");
  }
  core_->end(std::move(cause));
  ended_.set_value();
}

void Connection::sendLoop() {
  ::pthread_setname_np(::pthread_self(), "dtorch-send");
  while (std::unique_ptr<v1::ClientMessage> batch = core_->queue().next()) {
    if (!stream_->Write(*batch)) return;
    core_->queue().recycle(std::move(batch));
  }
  stream_->WritesDone();
}

grpc::Status Connection::finish() {
  core_->queue().stop();
  // A daemon that sent what does not parse would neither read nor end the stream: cancelling it ends both waits.
  std::future<grpc::Status> status = std::async(std::launch::async, [this] {
    if (sender_.joinable()) sender_.join();
    return stream_->Finish();
  });
  if (status.wait_for(kFinishTimeout) != std::future_status::ready) context_.TryCancel();
  return status.get();
}

}  // namespace dtorch
