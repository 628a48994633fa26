#include "comm/future/value_client.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dtorch {

absl::StatusOr<std::unique_ptr<ValueClient>> ValueClient::connect(const std::string& path,
                                                                  std::shared_ptr<MappedSegments> mapped) {
  auto socket = LocalSocket::connect(path);
  if (!socket.ok()) return socket.status();
  const int wake = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake < 0) return absl::ResourceExhaustedError(absl::StrCat("eventfd: ", std::strerror(errno)));
  return std::unique_ptr<ValueClient>(new ValueClient(*std::move(socket), wake, std::move(mapped)));
}

ValueClient::ValueClient(LocalSocket socket, int wake, std::shared_ptr<MappedSegments> mapped)
    : socket_(std::move(socket)), wake_(wake), mapped_(std::move(mapped)), thread_([this] { loop(); }) {
  pthread_setname_np(thread_.native_handle(), "dtorch-values");
}

ValueClient::~ValueClient() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wakeLoop();
  thread_.join();
  ::close(wake_);
}

void ValueClient::wakeLoop() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof(one));  // full: it is awake anyway
}

void ValueClient::fetch(std::uint64_t id, Callback done) {
  absl::Status ended;
  {
    const std::lock_guard lock(mutex_);
    if (ended_.ok()) {
      waiting_.emplace(++requests_, std::move(done));
      unsent_.push_back({requests_, id});
      sendLocked();
      if (!unsent_.empty()) wakeLoop();
      return;
    }
    ended = ended_;
  }
  done(ended);
}

bool ValueClient::ended() {
  const std::lock_guard lock(mutex_);
  return !ended_.ok();
}

void ValueClient::sendLocked() {
  while (!unsent_.empty()) {
    const auto sent = socket_.trySend(encodeRequest(unsent_.front()));
    if (!sent.ok() || !*sent) return;  // the reading side sees that the server is gone
    unsent_.pop_front();
  }
}

void ValueClient::endAll(const absl::Status& why) {
  std::unordered_map<std::uint64_t, Callback> waiting;
  {
    const std::lock_guard lock(mutex_);
    ended_ = why;
    waiting.swap(waiting_);
  }
  for (auto& [request, done] : waiting) done(why);
}

void ValueClient::loop() {
  const absl::Status died =
      absl::UnavailableError(absl::StrCat("process ", socket_.peer(), ", which was to give the value, ended"));
  for (;;) {
    std::array<pollfd, 2> fds{{{socket_.fd(), POLLIN, 0}, {wake_, POLLIN, 0}}};
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) break;
      if (!unsent_.empty()) fds[0].events |= POLLOUT;
    }
    ::poll(fds.data(), fds.size(), -1);
    if (fds[1].revents != 0) {
      std::uint64_t count = 0;
      [[maybe_unused]] const ssize_t drained = ::read(wake_, &count, sizeof(count));
    }
    if ((fds[0].revents & POLLOUT) != 0) {
      const std::lock_guard lock(mutex_);
      sendLocked();
    }
    auto message = socket_.tryReceive();
    if (!message.ok()) return endAll(died);
    if (!*message) continue;
    auto reply = decodeReply(**std::move(message), mapped_.get());
    if (!reply) return endAll(absl::InternalError("the other end speaks another protocol"));
    Callback done;
    {
      const std::lock_guard lock(mutex_);
      const auto found = waiting_.find(reply->request);
      if (found == waiting_.end()) continue;
      done = std::move(found->second);
      waiting_.erase(found);
    }
    done(std::move(reply->value));
  }
  endAll(absl::CancelledError("the connection was closed"));
}

}  // namespace dtorch
