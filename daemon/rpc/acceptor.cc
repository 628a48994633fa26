#include "daemon/rpc/acceptor.h"

#include <fcntl.h>
#include <grpcpp/server_posix.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <future>

#include "spdlog/spdlog.h"

namespace dtorch {
namespace {

constexpr std::chrono::milliseconds kCutAfter{250};

ino_t inodeOf(int fd) {
  struct stat socket {};
  return ::fstat(fd, &socket) == 0 ? socket.st_ino : 0;
}

PeerCredentials readCredentials(int fd) {
  int domain = 0;
  socklen_t size = sizeof domain;
  if (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0 || domain != AF_UNIX) return {};
  ucred peer{};
  size = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return {};
  return {.pid = peer.pid, .uid = peer.uid, .gid = peer.gid};
}

int descriptorOf(const std::string& peer) {
  int fd = -1;
  std::sscanf(peer.c_str(), "fd:%d", &fd);
  return fd;
}

}  // namespace

absl::Status Acceptor::start(grpc::Server* server) {
  wake_ = FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_.valid()) return absl::ErrnoToStatus(errno, "creating an eventfd");
  server_ = server;
  thread_ = std::thread([this] { run(); });
  return absl::OkStatus();
}

void Acceptor::stop() {
  if (thread_.joinable()) {
    ::eventfd_write(wake_.get(), 1);
    thread_.join();
  }
  for (ListeningSocket& socket : sockets_) socket.close();
}

void Acceptor::shutdownServer(std::chrono::milliseconds grace) {
  if (server_ == nullptr) return;
  std::promise<void> done;
  std::thread cutter([&] {
    if (done.get_future().wait_for(grace + kCutAfter) == std::future_status::timeout) cutConnections();
  });
  server_->Shutdown(std::chrono::system_clock::now() + grace);
  done.set_value();
  cutter.join();
}

PeerCredentials Acceptor::credentials(const std::string& peer) const {
  const std::lock_guard lock(mutex_);
  const auto it = connections_.find(descriptorOf(peer));
  return it == connections_.end() ? PeerCredentials{} : it->second.peer;
}

bool Acceptor::hasUnread(const std::string& peer) const {
  const FileDescriptor fd = duplicate(peer);
  int bytes = 0;
  return fd.valid() && ::ioctl(fd.get(), SIOCOUTQ, &bytes) == 0 && bytes > 0;
}

void Acceptor::cut(const std::string& peer) const {
  if (const FileDescriptor fd = duplicate(peer); fd.valid()) ::shutdown(fd.get(), SHUT_RDWR);
}

void Acceptor::run() {
  ::pthread_setname_np(::pthread_self(), "dtorch-accept");
  constexpr int kRetryMs = 100;
  std::vector<pollfd> polled{{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
  for (const ListeningSocket& socket : sockets_) polled.push_back({.fd = socket.fd(), .events = POLLIN, .revents = 0});
  for (bool starved = false;;) {
    // Without a free descriptor the waiting connection keeps the socket readable: look at `wake_` alone for a while.
    ::poll(polled.data(), starved ? 1 : polled.size(), starved ? kRetryMs : -1);
    if (polled[0].revents != 0) return;
    const bool wasStarved = starved;
    starved = false;
    for (std::size_t i = 1; i < polled.size(); ++i) {
      if ((wasStarved || polled[i].revents != 0) && !acceptOne(polled[i].fd)) starved = true;
      polled[i].revents = 0;
    }
    if (starved && !wasStarved) spdlog::warn("cannot accept a connection: {}; trying again", std::strerror(errno));
  }
}

bool Acceptor::acceptOne(int listening) {
  const int fd = ::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
  if (fd >= maxDescriptor_) {  // numbers are given out from the lowest: nearly all are taken
    ::close(fd);
    return true;
  }
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // a Unix socket refuses, and needs it not
  {
    const std::lock_guard lock(mutex_);
    connections_[fd] = {readCredentials(fd), inodeOf(fd)};
  }
  grpc::AddInsecureChannelFromFd(server_, fd);
  return true;
}

void Acceptor::cutConnections() {
  const std::lock_guard lock(mutex_);
  for (const auto& [number, connection] : connections_) {
    if (const FileDescriptor fd = duplicate(number, connection); fd.valid()) ::shutdown(fd.get(), SHUT_RDWR);
  }
}

FileDescriptor Acceptor::duplicate(int fd, const Connection& connection) {
  // gRPC may close the descriptor at any time; the duplicate is looked at, and stays what it is.
  FileDescriptor own(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  return own.valid() && inodeOf(own.get()) == connection.inode ? std::move(own) : FileDescriptor();
}

FileDescriptor Acceptor::duplicate(const std::string& peer) const {
  const std::lock_guard lock(mutex_);
  const auto it = connections_.find(descriptorOf(peer));
  return it == connections_.end() ? FileDescriptor() : duplicate(it->first, it->second);
}

}  // namespace dtorch
