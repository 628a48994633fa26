#include "shm/process_watch.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace dtorch {

absl::StatusOr<ProcessWatch> ProcessWatch::open(std::int64_t pid) {
  const int fd = static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0));  // close-on-exec by itself
  if (fd < 0) {
    const int error = errno;
    if (error == ESRCH) return absl::NotFoundError(absl::StrCat("process ", pid, " is gone"));
    return absl::InternalError(absl::StrCat("cannot watch process ", pid, ": ", std::strerror(error)));
  }
  ProcessWatch watch;
  watch.fd_ = fd;
  watch.pid_ = pid;
  return watch;
}

ProcessWatch::ProcessWatch(ProcessWatch&& other) noexcept : fd_(std::exchange(other.fd_, -1)), pid_(other.pid_) {}

ProcessWatch& ProcessWatch::operator=(ProcessWatch&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(pid_, other.pid_);
  return *this;
}

ProcessWatch::~ProcessWatch() {
  if (fd_ >= 0) ::close(fd_);
}

bool ProcessWatch::exited() const {
  pollfd entry{fd_, POLLIN, 0};
  return ::poll(&entry, 1, 0) > 0;
}

}  // namespace dtorch
