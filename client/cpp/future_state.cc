#include "client/cpp/future_state.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/session_core.h"
#include "client/cpp/status_payload.h"
#include "dtorch/v1/client.pb.h"
#include "proto/codec.h"

namespace dtorch {

FutureState::FutureState(std::shared_ptr<SessionCore> session, FutureId id, Kind kind)
    : session_(std::move(session)), id_(id), kind_(kind) {}

FutureState::FutureState(absl::Status error) : id_(0), kind_(Kind::kDone), resolved_(true), status_(std::move(error)) {}

FutureState::~FutureState() {
  if (!resolved_ && !isParents()) session_->cancel(id_);
  if (event_ >= 0) ::close(event_);
}

bool FutureState::isParents() const { return session_ != nullptr && session_->isParents(); }

const absl::Status& FutureState::status() const { return !resolved_ && isParents() ? forkedError() : status_; }

bool FutureState::resolved() const {
  const std::lock_guard lock(mutex_);
  return resolved_;
}

bool FutureState::poll() const {
  if (isParents()) return true;
  if (resolved()) return true;
  session_->flush();
  return false;
}

void FutureState::wait() const {
  if (poll()) return;
  std::unique_lock lock(mutex_);
  resolvedChanged_.wait(lock, [this] { return resolved_; });
}

bool FutureState::waitUntil(std::chrono::steady_clock::time_point deadline) const {
  if (poll()) return true;
  std::unique_lock lock(mutex_);
  return resolvedChanged_.wait_until(lock, deadline, [this] { return resolved_; });
}

int FutureState::event() {
  if (poll() && isParents()) return -1;
  const std::lock_guard lock(mutex_);
  if (event_ < 0) event_ = ::eventfd(resolved_ ? 1 : 0, EFD_CLOEXEC | EFD_NONBLOCK);
  return event_;
}

void FutureState::resolve(absl::Status status) {
  {
    const std::lock_guard lock(mutex_);
    if (resolved_) return;
    status_ = std::move(status);
    resolved_ = true;  // last: a child may be forked in between
    if (event_ >= 0) ::eventfd_write(event_, 1);
  }
  resolvedChanged_.notify_all();  // after the lock, so that who wakes need not wait for it
}

bool FutureState::onResult(const v1::FutureResult& result, const Mesh& mesh) {
  absl::Status status = result.has_error() ? statusFromError(result.error()) : assemble(result, mesh);
  if (status.ok() && !result.done()) return false;
  resolve(std::move(status));
  return true;
}

void FutureState::onValue(TensorMeta meta, std::shared_ptr<std::byte[]> data) {
  if (resolved()) return;
  reply_.info.meta = std::move(meta);
  reply_.data = std::move(data);
  resolve(absl::OkStatus());
}

absl::Status FutureState::assemble(const v1::FutureResult& result, const Mesh& mesh) {
  if (kind_ == Kind::kDone) return absl::OkStatus();
  if (kind_ == Kind::kJson) {
    reply_.json = result.json();
    return absl::OkStatus();
  }
  if (!started_) {
    absl::StatusOr<TensorMeta> meta = fromWire(result.meta());
    if (!meta.ok()) return meta.status();
    absl::StatusOr<Placements> placements = fromWire(result.placements());
    if (!placements.ok()) return placements.status();
    reply_.info = {*std::move(meta), *std::move(placements), mesh};
    started_ = true;
    if (kind_ == Kind::kInfo) return absl::OkStatus();
    const std::int64_t bytes = reply_.info.meta.bytes();
    reply_.data.reset(new (std::nothrow) std::byte[static_cast<std::size_t>(bytes)]);
    if (reply_.data == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat("no ", bytes, " bytes of memory for the value"));
    }
  }
  if (kind_ == Kind::kInfo) return absl::OkStatus();
  const std::string& data = result.data();
  const std::int64_t bytes = reply_.info.meta.bytes();
  if (result.offset() != static_cast<std::uint64_t>(received_) ||
      data.size() > static_cast<std::uint64_t>(bytes - received_)) {
    return absl::InternalError(absl::StrCat("the daemon sent ", data.size(), " bytes at ", result.offset(),
                                            " of a value of ", bytes, " bytes, ", received_, " of which had come"));
  }
  std::memcpy(reply_.data.get() + received_, data.data(), data.size());
  received_ += static_cast<std::int64_t>(data.size());
  if (result.done() && received_ != bytes) {
    return absl::InternalError(absl::StrCat("the daemon ended a value of ", bytes, " bytes after ", received_));
  }
  return absl::OkStatus();
}

}  // namespace dtorch
