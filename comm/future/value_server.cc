#include "comm/future/value_server.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dtorch {
namespace {
/// A client with so many unread answers is not listened to until it reads.
constexpr std::size_t kMaxQueued = 256;
}  // namespace

absl::StatusOr<std::unique_ptr<ValueServer>> ValueServer::create(const std::string& path) {
  auto listener = LocalSocket::listen(path);
  if (!listener.ok()) return listener.status();
  const int wake = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake < 0) {
    ::unlink(path.c_str());
    return absl::ResourceExhaustedError(absl::StrCat("eventfd: ", std::strerror(errno)));
  }
  return std::unique_ptr<ValueServer>(new ValueServer(path, *std::move(listener), wake));
}

ValueServer::ValueServer(std::string path, LocalSocket listener, int wake)
    : path_(std::move(path)), listener_(std::move(listener)), wake_(wake), thread_([this] { loop(); }) {
  pthread_setname_np(thread_.native_handle(), "dtorch-values");
}

ValueServer::~ValueServer() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wakeLoop();
  thread_.join();
  ::close(wake_);
  ::unlink(path_.c_str());
}

void ValueServer::wakeLoop() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof(one));  // full: it is awake anyway
}

ValueTicket ValueServer::announce() {
  std::random_device random;
  const std::lock_guard lock(mutex_);
  for (;;) {
    const std::uint64_t id = (static_cast<std::uint64_t>(random()) << 32) | random();
    if (entries_.try_emplace(id).second) return {path_, id};
  }
}

absl::Status ValueServer::resolve(std::uint64_t id, SnapshotOr value) {
  bool unsent = false;
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(id);
    if (found == entries_.end()) return absl::NotFoundError("the value was never announced, or is withdrawn");
    Entry& entry = found->second;
    if (entry.value) return absl::FailedPreconditionError("the value is resolved already");
    entry.value = std::make_unique<SnapshotOr>(std::move(value));
    for (const Waiter& waiter : std::exchange(entry.waiters, {})) {
      const auto connection = waiter.connection.lock();
      if (!connection) continue;
      replyLocked(*connection, waiter.request, *entry.value);
      unsent = unsent || !connection->queue.empty() || connection->gone;
    }
  }
  if (unsent) wakeLoop();
  return absl::OkStatus();
}

void ValueServer::withdraw(std::uint64_t id) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(id);
    if (found == entries_.end()) return;
    for (const Waiter& waiter : found->second.waiters) {
      const auto connection = waiter.connection.lock();
      if (connection) replyLocked(*connection, waiter.request, absl::AbortedError("the value was withdrawn"));
    }
    entries_.erase(found);
  }
  wakeLoop();
}

void ValueServer::replyLocked(Connection& connection, std::uint64_t request, const SnapshotOr& value) {
  connection.queue.push_back({encodeReply(request, value), value.ok() ? *value : nullptr});
  flushLocked(connection);
}

void ValueServer::flushLocked(Connection& connection) {
  while (!connection.gone && !connection.queue.empty()) {
    const Outgoing& next = connection.queue.front();
    const bool large = next.value && next.value->segment;
    const auto sent = connection.socket.trySend(next.message, large ? next.value->segment->ref().fd : -1);
    if (!sent.ok()) connection.gone = true;
    if (!sent.ok() || !*sent) return;
    connection.queue.pop_front();
  }
}

bool ValueServer::acceptLocked() {
  while (auto socket = listener_.accept()) {
    connections_.push_back(std::make_shared<Connection>());
    connections_.back()->socket = std::move(*socket);
  }
  return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
}

void ValueServer::readLocked(const std::shared_ptr<Connection>& connection) {
  while (!connection->gone && connection->queue.size() < kMaxQueued) {
    auto message = connection->socket.tryReceive();
    if (message.ok() && !*message) return;
    const auto request = message.ok() ? decodeRequest((**message).bytes) : std::nullopt;
    if (message.ok() && (**message).descriptor >= 0) ::close((**message).descriptor);
    if (!request) {
      connection->gone = true;
      return;
    }
    const auto found = entries_.find(request->id);
    if (found == entries_.end()) {
      replyLocked(*connection, request->request, absl::NotFoundError("no such value, or it was withdrawn"));
    } else if (found->second.value) {
      replyLocked(*connection, request->request, *found->second.value);
    } else {
      std::vector<Waiter>& waiters = found->second.waiters;
      std::erase_if(waiters, [](const Waiter& waiter) { return waiter.connection.expired(); });
      waiters.push_back({connection, request->request});
    }
  }
}

void ValueServer::loop() {
  constexpr int kRetryMs = 100;
  for (bool starved = false;;) {
    std::vector<std::shared_ptr<Connection>> polled;
    std::vector<pollfd> fds = {{wake_, POLLIN, 0}, {listener_.fd(), POLLIN, 0}};
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      for (const auto& connection : connections_) {
        const int in = connection->queue.size() < kMaxQueued ? POLLIN : 0;
        const int out = connection->queue.empty() ? 0 : POLLOUT;
        fds.push_back({connection->socket.fd(), static_cast<short>(in | out), 0});
        polled.push_back(connection);
      }
    }
    // Without a free descriptor a waiting connection keeps the listener readable: it is left alone for a while.
    if (starved) fds[1].events = 0;
    ::poll(fds.data(), fds.size(), starved ? kRetryMs : -1);
    const std::lock_guard lock(mutex_);
    if (fds[0].revents != 0) {
      std::uint64_t count = 0;
      [[maybe_unused]] const ssize_t drained = ::read(wake_, &count, sizeof(count));
    }
    if (fds[1].revents != 0 || starved) starved = !acceptLocked();
    for (std::size_t i = 0; i < polled.size(); ++i) {
      const short events = fds[i + 2].revents;
      if ((events & POLLOUT) != 0) flushLocked(*polled[i]);
      if ((events & POLLIN) != 0) readLocked(polled[i]);
      if ((events & (POLLHUP | POLLERR)) != 0 && (events & POLLIN) == 0) polled[i]->gone = true;
    }
    connections_.remove_if([](const auto& connection) { return connection->gone; });
  }
}

}  // namespace dtorch
