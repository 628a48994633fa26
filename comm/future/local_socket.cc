#include "comm/future/local_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace dtorch {
namespace {

absl::StatusOr<sockaddr_un> addressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("a socket's path has at most 107 bytes: ", path));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

int newSocket(int flags) { return ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0); }

}  // namespace

absl::StatusOr<LocalSocket> LocalSocket::listen(const std::string& path) {
  const auto address = addressOf(path);
  if (!address.ok()) return address.status();
  LocalSocket socket(newSocket(SOCK_NONBLOCK));
  // The mode of the socket's inode before it has a name: nobody else can connect in between.
  if (socket.fd_ < 0 || ::fchmod(socket.fd_, S_IRUSR | S_IWUSR) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot make a socket: ", std::strerror(errno)));
  }
  if (::bind(socket.fd_, reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)) != 0) {
    const int error = errno;
    const std::string text = absl::StrCat("cannot bind ", path, ": ", std::strerror(error));
    return error == EADDRINUSE ? absl::AlreadyExistsError(text) : absl::FailedPreconditionError(text);
  }
  if (::listen(socket.fd_, SOMAXCONN) != 0) {
    return absl::InternalError(absl::StrCat("cannot listen at ", path, ": ", std::strerror(errno)));
  }
  return socket;
}

absl::StatusOr<LocalSocket> LocalSocket::connect(const std::string& path) {
  const auto address = addressOf(path);
  if (!address.ok()) return address.status();
  LocalSocket socket(newSocket(0));
  if (socket.fd_ < 0) return absl::ResourceExhaustedError(absl::StrCat("cannot make a socket: ", std::strerror(errno)));
  int result = 0;
  do {
    result = ::connect(socket.fd_, reinterpret_cast<const sockaddr*>(&*address), sizeof(*address));
  } while (result != 0 && errno == EINTR);
  if (result != 0) {
    return absl::UnavailableError(absl::StrCat("cannot connect to ", path, ": ", std::strerror(errno)));
  }
  return socket;
}

LocalSocket::LocalSocket(LocalSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

LocalSocket& LocalSocket::operator=(LocalSocket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

LocalSocket::~LocalSocket() {
  if (fd_ >= 0) ::close(fd_);
}

std::int64_t LocalSocket::peer() const {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return ::getsockopt(fd_, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 ? peer.pid : 0;
}

std::optional<LocalSocket> LocalSocket::accept() const {
  const int fd = ::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0) return std::nullopt;
  return LocalSocket(fd);
}

absl::StatusOr<bool> LocalSocket::trySend(const std::string& bytes, int descriptor) const {
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  }
  if (::sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return true;
  if (errno == EAGAIN || errno == EINTR) return false;
  return absl::UnavailableError(absl::StrCat("sending to process ", peer(), ": ", std::strerror(errno)));
}

absl::StatusOr<std::optional<LocalSocket::Message>> LocalSocket::tryReceive() const {
  Message received;
  received.bytes.resize(kMaxMessage);
  iovec part{received.bytes.data(), received.bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t bytes = ::recvmsg(fd_, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return std::optional<Message>();
  if (bytes <= 0) return absl::UnavailableError(absl::StrCat("process ", peer(), " closed the connection"));
  received.bytes.resize(static_cast<std::size_t>(bytes));
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
      std::memcpy(&received.descriptor, CMSG_DATA(header), sizeof(int));
    }
  }
  return std::optional<Message>(std::move(received));
}

}  // namespace dtorch
