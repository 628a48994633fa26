#include "daemon/rpc/pid_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace dtorch {
namespace {

// The kernel knows who holds the lock before the holder has written its pid. The text of the file is the fallback for
// file systems whose device number in /proc/locks is not the one that stat gives.
std::int64_t holderOf(int fd) {
  struct stat file {};
  ::fstat(fd, &file);
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    std::int64_t pid = 0;
    unsigned majorNumber = 0;
    unsigned minorNumber = 0;
    std::uint64_t inode = 0;
    if (std::sscanf(line.c_str(), "%*d: FLOCK ADVISORY WRITE %ld %x:%x:%lu", &pid, &majorNumber, &minorNumber,
                    &inode) == 4 &&
        inode == file.st_ino && makedev(majorNumber, minorNumber) == file.st_dev) {
      return pid;
    }
  }
  char text[32] = {};
  std::int64_t pid = 0;
  if (::pread(fd, text, sizeof text - 1, 0) > 0) std::sscanf(text, "%ld", &pid);
  return pid;
}

// Whether a process has ended, by `deadline` at the latest.
bool endsUntil(std::int64_t pid, std::chrono::steady_clock::time_point deadline) {
  const FileDescriptor process(static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0)));
  if (!process.valid()) return errno == ESRCH;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  pollfd ended{process.get(), POLLIN, 0};
  return ::poll(&ended, 1, static_cast<int>(std::max<std::int64_t>(0, left.count()))) > 0;
}

bool isStillAt(int fd, const std::string& path) {
  struct stat mine {};
  struct stat there {};
  return ::fstat(fd, &mine) == 0 && ::lstat(path.c_str(), &there) == 0 && mine.st_ino == there.st_ino &&
         mine.st_dev == there.st_dev;
}

}  // namespace

absl::Status ensureRuntimeDirectory(const std::string& path) {
  if (path.empty()) return absl::OkStatus();  // the working directory
  if (::mkdir(path.c_str(), 0700) == 0) return absl::OkStatus();
  if (errno == ENOENT) {
    const std::size_t slash = path.find_last_of('/');
    if (slash == std::string::npos || slash == 0) return absl::ErrnoToStatus(ENOENT, absl::StrCat("creating ", path));
    if (absl::Status status = ensureRuntimeDirectory(path.substr(0, slash)); !status.ok()) return status;
    if (::mkdir(path.c_str(), 0700) == 0) return absl::OkStatus();
  }
  if (errno != EEXIST) return absl::ErrnoToStatus(errno, absl::StrCat("creating the directory ", path));
  struct stat there {};
  if (::stat(path.c_str(), &there) != 0) return absl::ErrnoToStatus(errno, path);
  if (!S_ISDIR(there.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is not a directory: move it, or set another runtime.dir"));
  }
  if (there.st_uid != ::geteuid() && there.st_uid != 0) {
    return absl::PermissionDeniedError(absl::StrCat("the directory ", path, " belongs to user ", there.st_uid,
                                                    ", not to user ", ::geteuid(), ": set another runtime.dir"));
  }
  return absl::OkStatus();
}

absl::StatusOr<PidFile> PidFile::acquire(const std::string& path, std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  constexpr int kAttempts = 100;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
    if (!fd.valid()) return absl::ErrnoToStatus(errno, absl::StrCat("opening the pid file ", path));
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return absl::ErrnoToStatus(errno, absl::StrCat("locking ", path));
      const std::int64_t holder = holderOf(fd.get());
      if (holder == 0 || endsUntil(holder, deadline)) continue;
      return absl::AlreadyExistsError(
          absl::StrCat("another dtorchd runs here, pid ", holder, " (it holds ", path, ")"));
    }
    // A holder removes its file before it unlocks: then this lock is on a file that nobody else will find.
    if (!isStillAt(fd.get(), path)) continue;
    const std::string text = absl::StrCat(::getpid(), "\n");
    if (::ftruncate(fd.get(), 0) != 0 || ::pwrite(fd.get(), text.data(), text.size(), 0) < 0) {
      return absl::ErrnoToStatus(errno, absl::StrCat("writing ", path));
    }
    return PidFile(std::move(fd), path);
  }
  return absl::UnavailableError(
      absl::StrCat(path, " changed hands ", kAttempts, " times while this daemon tried to lock it: start it again"));
}

PidFile::~PidFile() {
  if (fd_.valid() && isStillAt(fd_.get(), path_)) ::unlink(path_.c_str());
}

}  // namespace dtorch
