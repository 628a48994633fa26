#include "daemon/rpc/listening_socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace dtorch {
namespace {

constexpr int kBacklog = 511;

// Removes a socket that nobody listens on; OK when nothing is there.
absl::Status removeStale(const std::string& path, const sockaddr_un& address) {
  struct stat there {};
  if (::lstat(path.c_str(), &there) != 0) {
    return errno == ENOENT ? absl::OkStatus() : absl::ErrnoToStatus(errno, absl::StrCat("looking at ", path));
  }
  if (!S_ISSOCK(there.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " exists and is not a socket: it is left alone; move it, or listen elsewhere"));
  }
  const FileDescriptor probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe.valid()) return absl::ErrnoToStatus(errno, "creating a socket");
  const bool connected = ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  if (!connected && errno == ECONNREFUSED) {
    if (::unlink(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
    return absl::ErrnoToStatus(errno, absl::StrCat("removing the stale socket ", path));
  }
  if (!connected && errno != EAGAIN) return absl::ErrnoToStatus(errno, absl::StrCat("connecting to ", path));
  ucred peer{};
  socklen_t size = sizeof peer;
  const bool known = connected && ::getsockopt(probe.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
  return absl::AlreadyExistsError(
      absl::StrCat("process ", known ? absl::StrCat(peer.pid) : "(of unknown pid)", " already listens on ", path));
}

struct HostPort {
  std::string host;
  std::uint32_t port = 0;
};

std::optional<HostPort> splitAddress(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  HostPort result;
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &result.port) || result.port > 65535) {
    return std::nullopt;
  }
  result.host = address.substr(0, colon);
  if (result.host.size() > 2 && result.host.front() == '[' && result.host.back() == ']') {
    result.host = result.host.substr(1, result.host.size() - 2);
  } else if (result.host.find(':') != std::string::npos) {
    return std::nullopt;
  }
  return result;
}

// Numeric hosts only, so that no name service decides what is a loopback address.
bool isLoopback(const std::string& host) {
  in_addr v4{};
  in6_addr v6{};
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  return ::inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

}  // namespace

absl::StatusOr<ListeningSocket> ListeningSocket::bindUnix(const std::string& path, mode_t mode) {
  if (path.empty() || path.size() > kMaxUnixPath) {
    return absl::InvalidArgumentError(absl::StrCat("the socket path ", path, " has ", path.size(),
                                                   " bytes, a Unix socket holds 1 to ", kMaxUnixPath,
                                                   ": choose a shorter one"));
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  if (absl::Status status = removeStale(path, address); !status.ok()) return status;

  FileDescriptor fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, "creating a socket");
  // Linux gives the path the mode of the unbound socket, less the umask, so it is never wider than `mode`; chmod then
  // adds what the umask took. The umask itself belongs to all threads and is left alone.
  if (::fchmod(fd.get(), mode) != 0 ||
      ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("binding ", path));
  }
  struct stat bound {};
  if (::chmod(path.c_str(), mode) != 0 || ::listen(fd.get(), kBacklog) != 0 || ::lstat(path.c_str(), &bound) != 0) {
    const absl::Status status = absl::ErrnoToStatus(errno, absl::StrCat("listening on ", path));
    ::unlink(path.c_str());
    return status;
  }
  return ListeningSocket(std::move(fd), path, bound.st_ino);
}

absl::StatusOr<ListeningSocket> ListeningSocket::bindLoopback(const std::string& address) {
  std::optional<HostPort> parts = splitAddress(address);
  if (!parts) return absl::InvalidArgumentError(absl::StrCat("\"", address, "\" is not of the form HOST:PORT"));
  if (parts->host == "localhost") parts->host = "127.0.0.1";
  if (!isLoopback(parts->host)) {
    return absl::PermissionDeniedError(absl::StrCat(
        "refusing to listen on ", address,
        ": TCP is neither encrypted nor authenticated, so only 127.0.0.1, [::1] and localhost are allowed"));
  }
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(parts->host.c_str(), absl::StrCat(parts->port).c_str(), &hints, &found)) {
    return absl::InvalidArgumentError(absl::StrCat(address, ": ", ::gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> target(found, ::freeaddrinfo);
  FileDescriptor fd(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, "creating a socket");
  // SO_REUSEADDR: a restart need not wait for TIME_WAIT. Never SO_REUSEPORT, by which two daemons share a port.
  const int on = 1;
  if (::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(fd.get(), found->ai_addr, found->ai_addrlen) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    const int error = errno;
    if (error == EADDRINUSE) {
      return absl::AlreadyExistsError(absl::StrCat("another process already listens on ", address));
    }
    return absl::ErrnoToStatus(error, absl::StrCat("binding ", address));
  }
  return ListeningSocket(std::move(fd), "", 0);
}

void ListeningSocket::close() {
  if (!fd_.valid()) return;
  struct stat there {};
  if (!path_.empty() && ::lstat(path_.c_str(), &there) == 0 && there.st_ino == inode_) ::unlink(path_.c_str());
  fd_.reset();
}

}  // namespace dtorch
