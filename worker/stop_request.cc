#include "worker/stop_request.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace dtorch {

StopRequest::StopRequest() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (fd_ < 0) throw std::system_error(errno, std::system_category(), "eventfd");
}

StopRequest::~StopRequest() { close(fd_); }

void StopRequest::request(const absl::Status& why) {
  const absl::MutexLock lock(&mutex_);
  if (requested()) return;
  why_ = why;
  requested_.store(true, std::memory_order_release);
  eventfd_write(fd_, 1);
}

absl::Status StopRequest::why() const {
  const absl::MutexLock lock(&mutex_);
  return why_;
}

}  // namespace dtorch
