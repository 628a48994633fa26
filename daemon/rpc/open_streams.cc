#include "daemon/rpc/open_streams.h"

namespace dtorch {

SessionStream* OpenStreams::add(SessionListener* listener, PeerCredentials peer, std::size_t maxMessageBytes,
                                SessionStream::Connection connection) {
  auto stream = std::make_shared<SessionStream>(listener, peer, maxMessageBytes, std::move(connection),
                                                [this](SessionStream* done) { remove(done); });
  absl::Status closed;
  {
    const std::lock_guard lock(mutex_);
    streams_.emplace(stream.get(), stream);
    closed = closed_;
  }
  if (closed.ok()) {
    stream->open(stream);
  } else {
    stream->close(closed);
  }
  return stream.get();
}

void OpenStreams::close(const absl::Status& status) {
  std::vector<std::shared_ptr<SessionStream>> open;
  {
    const std::lock_guard lock(mutex_);
    if (!closed_.ok()) return;
    closed_ = status;
    open = allLocked();
  }
  for (const auto& stream : open) stream->close(status);
}

void OpenStreams::cutOffUnread(std::chrono::milliseconds limit) {
  std::vector<std::shared_ptr<SessionStream>> open;
  {
    const std::lock_guard lock(mutex_);
    open = allLocked();
  }
  for (const auto& stream : open) stream->cutOffIfUnread(limit);
}

std::vector<std::shared_ptr<SessionStream>> OpenStreams::allLocked() const {
  std::vector<std::shared_ptr<SessionStream>> all;
  all.reserve(streams_.size());
  for (const auto& [key, stream] : streams_) all.push_back(stream);
  return all;
}

bool OpenStreams::waitUntilEmpty(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  return empty_.wait_until(lock, deadline, [this] { return streams_.empty(); });
}

void OpenStreams::remove(SessionStream* stream) {
  std::shared_ptr<SessionStream> last;  // released outside the lock
  const std::lock_guard lock(mutex_);
  last = std::move(streams_.extract(stream).mapped());
  if (streams_.empty()) empty_.notify_all();
}

}  // namespace dtorch
