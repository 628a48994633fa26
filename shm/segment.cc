#include "shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/interprocess/exceptions.hpp>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace dtorch {
namespace {
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

/// What mapped_region asks of a mapping: a descriptor and a mode.
struct OpenDescriptor {
  int fd;
  boost::interprocess::mapping_handle_t get_mapping_handle() const { return {fd, false}; }
  boost::interprocess::mode_t get_mode() const { return boost::interprocess::read_write; }
};

/// The kernel does not limit a memfd: it would go on allocating until something is killed for it.
constexpr std::size_t kCheckedBytes = std::size_t{64} << 20;

std::size_t availableMemory() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  std::string unit;
  std::size_t kib = 0;
  while (meminfo >> key >> kib && std::getline(meminfo, unit)) {
    if (key == "MemAvailable:") return kib * 1024;
  }
  return SIZE_MAX;
}

/// Gives a file its memory. An error number; a signal is none, though one that comes early ends the system call.
int allocate(int fd, std::size_t offset, std::size_t bytes) {
  int error = 0;
  do {
    error = ::posix_fallocate(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (error == EINTR);
  return error;
}

}  // namespace

absl::StatusOr<Segment> Segment::create(const std::string& label, std::size_t bytes) {
  return make(label, bytes, true);
}

absl::StatusOr<Segment> Segment::reserve(const std::string& label, std::size_t bytes) {
  return make(label, bytes, false);
}

absl::StatusOr<Segment> Segment::copyOf(const std::string& label, const std::byte* data, std::size_t bytes) {
  auto segment = make(label, bytes, false);
  if (segment.ok()) segment->onTouch_ = true;
  for (std::size_t done = 0; segment.ok() && done < bytes;) {
    const ssize_t written = ::pwrite(segment->fd_, data + done, bytes - done, static_cast<off_t>(done));
    if (written > 0) {
      done += static_cast<std::size_t>(written);
    } else if (written < 0 && errno != EINTR) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory for segment ", label, " of ", bytes, " bytes: ", std::strerror(errno)));
    }
  }
  return segment;
}

void Segment::populate() {
  if (std::exchange(onTouch_, false)) ::madvise(data(), size(), MADV_POPULATE_WRITE);
}

absl::Status Segment::commit(std::size_t offset, std::size_t bytes) {
  if (size() >= kCheckedBytes && bytes > availableMemory()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for bytes ", offset, " to ", offset + bytes, " of a segment of ", size()));
  }
  const int error = allocate(fd_, offset, bytes);
  if (error == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("no memory for bytes ", offset, " to ", offset + bytes, " of a segment: ", std::strerror(error)));
}

absl::StatusOr<Segment> Segment::make(const std::string& label, std::size_t bytes, bool committed) {
  if (bytes == 0) return absl::InvalidArgumentError(absl::StrCat("segment ", label, " would have no bytes"));
  if (bytes >= kCheckedBytes && bytes > availableMemory()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("segment ", label, " of ", bytes, " bytes exceeds available memory"));
  }
  const int fd = ::memfd_create(label.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return absl::ResourceExhaustedError(absl::StrCat("memfd_create: ", std::strerror(errno)));
  Segment segment;
  segment.fd_ = fd;
  const auto size = static_cast<off_t>(bytes);
  const int error = committed ? allocate(fd, 0, bytes) : ::ftruncate(fd, size) != 0 ? errno : 0;
  if (error != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for segment ", label, " of ", bytes, " bytes: ", std::strerror(error)));
  }
  if (::fcntl(fd, F_ADD_SEALS, kSeals) != 0) {
    return absl::InternalError(absl::StrCat("cannot seal segment ", label, ": ", std::strerror(errno)));
  }
  const Mapping mapping = committed ? Mapping::kPopulated : Mapping::kOnTouch;
  if (absl::Status mapped = map(segment, fd, mapping); !mapped.ok()) return mapped;
  segment.ref_.pid = ::getpid();
  segment.ref_.fd = fd;
  return segment;
}

absl::StatusOr<Segment> Segment::open(const SegmentRef& ref) {
  const std::string path = absl::StrCat("/proc/", ref.pid, "/fd/", ref.fd);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) {
    const bool full = errno == EMFILE || errno == ENFILE || errno == ENOMEM;
    return absl::Status(full ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kNotFound,
                        absl::StrCat("cannot open segment ", path, ": ", std::strerror(errno)));
  }
  const auto close = absl::MakeCleanup([fd] { ::close(fd); });
  struct stat info {};
  if (::fstat(fd, &info) != 0 || info.st_ino != ref.inode || static_cast<std::uint64_t>(info.st_size) != ref.bytes) {
    return absl::NotFoundError(absl::StrCat(path, " is no longer the segment of inode ", ref.inode));
  }
  Segment segment;
  if (absl::Status mapped = map(segment, fd, Mapping::kPopulated); !mapped.ok()) return mapped;
  segment.ref_ = ref;
  return segment;
}

absl::StatusOr<Segment> Segment::adoptPrivately(int fd) { return adopt(fd, Mapping::kPrivate); }

absl::StatusOr<Segment> Segment::adopt(int fd) { return adopt(fd, Mapping::kPopulated); }

absl::StatusOr<Segment> Segment::adopt(int fd, Mapping mapping) {
  Segment segment;
  segment.fd_ = fd;
  if (absl::Status mapped = map(segment, fd, mapping); !mapped.ok()) return mapped;
  segment.ref_.pid = ::getpid();
  segment.ref_.fd = fd;
  return segment;
}

absl::Status Segment::map(Segment& segment, int fd, Mapping mapping) {
  struct stat info {};
  // The seals show that nobody can shrink what is mapped here.
  if (::fstat(fd, &info) != 0 || ::fcntl(fd, F_GET_SEALS) != kSeals) {
    return absl::InvalidArgumentError(absl::StrCat("descriptor ", fd, " is not a sealed segment"));
  }
  const auto bytes = static_cast<std::size_t>(info.st_size);
  const auto mode = mapping == Mapping::kPrivate ? boost::interprocess::copy_on_write : boost::interprocess::read_write;
  try {
    segment.region_ = boost::interprocess::mapped_region(OpenDescriptor{fd}, mode, 0, bytes, nullptr,
                                                         mapping == Mapping::kPopulated ? MAP_POPULATE : 0);
  } catch (const boost::interprocess::interprocess_exception& e) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot map a segment of ", bytes, " bytes: ", e.what()));
  }
  // MAP_POPULATE would copy each page of a private mapping. Best effort: without it, pages come when they are read.
  if (mapping == Mapping::kPrivate) ::madvise(segment.data(), bytes, MADV_POPULATE_READ);
  segment.ref_.inode = info.st_ino;
  segment.ref_.bytes = bytes;
  return absl::OkStatus();
}

Segment::Segment(Segment&& other) noexcept { *this = std::move(other); }

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(onTouch_, other.onTouch_);
  std::swap(ref_, other.ref_);
  region_.swap(other.region_);
  return *this;
}

Segment::~Segment() {
  if (fd_ >= 0) ::close(fd_);
}

std::byte* Segment::data() const { return static_cast<std::byte*>(region_.get_address()); }

std::size_t Segment::size() const { return region_.get_size(); }

}  // namespace dtorch
