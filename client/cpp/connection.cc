#include "client/cpp/connection.h"

#include <pthread.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/address.h"
#include "proto/version.h"

namespace dtorch {
namespace {

constexpr std::chrono::seconds kCloseTimeout(2);
constexpr std::chrono::seconds kCancelTimeout(5);
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

// gRPC counts in the system's time.
std::chrono::system_clock::time_point systemTime(std::chrono::steady_clock::time_point time) {
  if (time == std::chrono::steady_clock::time_point::max()) return std::chrono::system_clock::time_point::max();
  return std::chrono::system_clock::now() +
         std::chrono::duration_cast<std::chrono::system_clock::duration>(time - std::chrono::steady_clock::now());
}

}  // namespace

Connection::Connection(std::string address, v1::ClientHello hello, std::shared_ptr<SessionCore> core)
    : address_(std::move(address)),
      core_(std::move(core)),
      stub_(v1::Dtorch::NewStub(makeChannel(address_))),
      values_(core_) {
  core_->useTickets(absl::StartsWith(address_, "unix:"));
  core_->queue().onChange([this] { sendDue(); });
  sending_ = std::make_unique<v1::ClientMessage>();
  *sending_->mutable_hello() = std::move(hello);
  sending_->mutable_hello()->set_protocol(kProtocolVersion);
  sending_->mutable_hello()->set_pid(::getpid());
  stream_ = stub_->PrepareAsyncSession(&context_, &events_);
  stream_->StartCall(tag(Event::kStarted));
  thread_ = std::thread([this] { serve(); });
}

Connection::~Connection() {
  closing_ = true;
  core_->queue().finish();
  if (ended_.get_future().wait_for(kCloseTimeout) != std::future_status::ready) context_.TryCancel();
  thread_.join();
  core_->queue().onChange(nullptr);  // tensors may outlive the connection
}

absl::StatusOr<v1::Welcome> Connection::welcome(Clock::time_point deadline) {
  std::future<absl::StatusOr<v1::Welcome>> future = welcomed_.get_future();
  if (future.wait_until(deadline) == std::future_status::ready) return future.get();
  context_.TryCancel();
  return absl::DeadlineExceededError(absl::StrCat("dtorchd at ", address_, " did not answer in time"));
}

absl::Status Connection::cancel(const v1::CancelRequest& request) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kCancelTimeout);
  v1::CancelReply reply;
  const grpc::Status status = stub_->Cancel(&context, request, &reply);
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      absl::StrCat("cancelling at dtorchd at ", address_, ": ", status.error_message()));
}

void Connection::serve() {
  ::pthread_setname_np(::pthread_self(), "dtorch-client");
  for (;;) {
    void* tag = nullptr;
    bool ok = false;
    switch (events_.AsyncNext(&tag, &ok, systemTime(cancelAt_))) {
      case grpc::CompletionQueue::GOT_EVENT:
        handle(static_cast<Event>(reinterpret_cast<std::uintptr_t>(tag)), ok);
        break;
      case grpc::CompletionQueue::TIMEOUT:
        // A daemon that sent what does not parse would neither read nor end the stream.
        context_.TryCancel();
        cancelAt_ = Clock::time_point::max();
        break;
      case grpc::CompletionQueue::SHUTDOWN:
        return;
    }
  }
}

void Connection::handle(Event event, bool ok) {
  switch (event) {
    case Event::kStarted:
      return ok ? onStarted() : finish();
    case Event::kRead:
      return ok ? onMessage() : finish();
    case Event::kWritten: {
      std::unique_ptr<v1::ClientMessage> sent;
      {
        const std::lock_guard lock(mutex_);
        sent = std::move(sending_);
      }
      if (!ok) return;  // the stream has ended: the read that is on its way will tell
      if (sent->has_batch()) core_->queue().recycle(std::move(sent));
      return sendDue();
    }
    case Event::kTimer: {
      {
        const std::lock_guard lock(mutex_);
        timing_ = false;
      }
      return sendDue();
    }
    case Event::kWritesDone:
      return;
    case Event::kFinished:
      return onFinished();
  }
}

void Connection::onStarted() {
  {
    const std::lock_guard lock(mutex_);
    stream_->Write(*sending_, tag(Event::kWritten));
  }
  stream_->Read(&message_, tag(Event::kRead));
}

void Connection::onMessage() {
  if (greeted_) {
    if (message_.has_put_taken()) {
      core_->onPutTaken(message_.put_taken().tensor());
    } else if (message_.result().has_ticket()) {
      values_.fetch(message_.result().future(), message_.result().ticket());
    } else if (message_.has_result()) {
      core_->onResult(message_.result());
    }
  } else if (message_.welcome().protocol() == kProtocolVersion) {
    greeted_ = true;
    core_->lendSegments(message_.welcome().opens_segments());
    {
      const std::lock_guard lock(mutex_);
      open_ = true;
    }
    welcomed_.set_value(message_.welcome());
    sendDue();
  } else if (cause_.ok()) {
    cause_ = absl::FailedPreconditionError(
        absl::StrCat("this client (", kDtorchVersion, ") speaks protocol ", kProtocolVersion, ", dtorchd at ", address_,
                     " (", message_.welcome().version(), ") speaks ", message_.welcome().protocol(),
                     ": install the same release on both sides"));
    context_.TryCancel();
  }
  stream_->Read(&message_, tag(Event::kRead));
}

void Connection::sendDue() {
  const std::lock_guard lock(mutex_);
  if (!open_ || sending_ != nullptr || doneWriting_) return;
  CommandQueue::Next next = core_->queue().next();
  if (next.batch != nullptr) {
    sending_ = std::move(next.batch);
    stream_->Write(*sending_, tag(Event::kWritten));
  } else if (next.drained) {
    doneWriting_ = true;
    stream_->WritesDone(tag(Event::kWritesDone));
  } else if (next.due && !timing_) {
    timing_ = true;
    timer_.Set(&events_, systemTime(*next.due), tag(Event::kTimer));
  }
}

void Connection::finish() {
  {
    const std::lock_guard lock(mutex_);
    open_ = false;
    timer_.Cancel();
  }
  core_->queue().stop();
  stream_->Finish(&status_, tag(Event::kFinished));
  cancelAt_ = Clock::now() + kFinishTimeout;
}

void Connection::onFinished() {
  if (cause_.ok() && greeted_) {
    cause_ = closing_ ? absl::UnavailableError("the session was closed") : streamError(status_, address_);
  } else if (cause_.ok() && status_.error_code() == grpc::StatusCode::UNAVAILABLE) {
    cause_ = absl::UnavailableError(absl::StrCat("no dtorchd answers at ", address_, " (", status_.error_message(),
                                                 "): start dtorchd, or name its socket in DTORCH_SOCKET"));
  } else if (cause_.ok()) {
    cause_ = streamError(status_, address_);
  }
  if (!greeted_) welcomed_.set_value(cause_);
  core_->end(cause_);
  cancelAt_ = Clock::time_point::max();
  events_.Shutdown();
  ended_.set_value();
}

}  // namespace dtorch
