#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace dtorch {

/// One end of a Unix socket that keeps messages whole (SOCK_SEQPACKET) and carries a file descriptor beside a message.
/// Move-only.
///
/// Thread: sending and receiving may overlap. Owns: the descriptor.
class LocalSocket {
 public:
  static constexpr std::size_t kMaxMessage = 64 << 10;

  struct Message {
    std::string bytes;
    /// A descriptor, the receiver's to close; -1: none was sent, or none is free in this process.
    int descriptor = -1;
  };

  LocalSocket() = default;
  /// Binds `path`, for this user alone. ALREADY_EXISTS: somebody has it. INVALID_ARGUMENT: longer than a socket's may
  /// be.
  static absl::StatusOr<LocalSocket> listen(const std::string& path);
  /// UNAVAILABLE: nobody listens there.
  static absl::StatusOr<LocalSocket> connect(const std::string& path);
  LocalSocket(LocalSocket&& other) noexcept;
  LocalSocket& operator=(LocalSocket&& other) noexcept;
  ~LocalSocket();

  int fd() const { return fd_; }
  /// Process at the other end, as the kernel saw it connect or listen; 0: unknown.
  std::int64_t peer() const;

  /// The next connection; nullopt when there is none now.
  std::optional<LocalSocket> accept() const;
  /// False: the other end has no room now. UNAVAILABLE: it is gone. `descriptor` stays the caller's.
  absl::StatusOr<bool> trySend(const std::string& bytes, int descriptor = -1) const;
  /// nullopt: nothing there now. UNAVAILABLE: the other end is gone.
  absl::StatusOr<std::optional<Message>> tryReceive() const;

 private:
  explicit LocalSocket(int fd) : fd_(fd) {}
  int fd_ = -1;
};

}  // namespace dtorch
