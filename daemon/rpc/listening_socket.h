#pragma once
#include <sys/types.h>

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/file_descriptor.h"

namespace dtorch {

/// A bound and listening stream socket, non-blocking.
/// Owns: the descriptor and, for a Unix socket, its path, removed at the end if this very socket is still there.
class ListeningSocket {
 public:
  static constexpr std::size_t kMaxUnixPath = 107;

  /// Binds `path`, which has `mode` from birth. A socket that nobody listens on any more is replaced: callers see to it
  /// (by a PidFile) that no two processes do so at once.
  /// INVALID_ARGUMENT: over 107 bytes. FAILED_PRECONDITION: something other than a socket is there; it is left alone.
  /// ALREADY_EXISTS: somebody listens there; the message has the pid.
  static absl::StatusOr<ListeningSocket> bindUnix(const std::string& path, mode_t mode);
  /// Binds "HOST:PORT" where HOST is localhost, 127.x.y.z or [::1]. PERMISSION_DENIED: any other host, since the
  /// connection is not encrypted and carries no credentials. ALREADY_EXISTS: the port is in use.
  static absl::StatusOr<ListeningSocket> bindLoopback(const std::string& address);

  ListeningSocket(ListeningSocket&&) = default;
  ListeningSocket& operator=(ListeningSocket&&) = delete;
  ~ListeningSocket() { close(); }

  int fd() const { return fd_.get(); }
  /// Idempotent.
  void close();

 private:
  ListeningSocket(FileDescriptor fd, std::string path, ino_t inode)
      : fd_(std::move(fd)), path_(std::move(path)), inode_(inode) {}
  FileDescriptor fd_;
  std::string path_;  // empty: TCP
  ino_t inode_;
};

}  // namespace dtorch
