#pragma once
#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/file_descriptor.h"

namespace dtorch {

/// Creates `path` (and what is above it) with mode 0700, or checks the one that is there. PERMISSION_DENIED: it belongs
/// to another user, who could replace the sockets in it. FAILED_PRECONDITION: it is no directory.
absl::Status ensureRuntimeDirectory(const std::string& path);

/// A file with this process's pid, flock'ed while the process lives: of any number of starts at one instant exactly one
/// gets it, and after kill -9 the next one does.
/// Owns: the lock and the file, which is removed at the end.
class PidFile {
 public:
  /// Waits up to `patience` for the end of a process that holds it: one that was killed does so for a moment more.
  /// ALREADY_EXISTS names its pid.
  static absl::StatusOr<PidFile> acquire(const std::string& path, std::chrono::milliseconds patience = {});
  PidFile(PidFile&&) = default;
  PidFile& operator=(PidFile&&) = delete;
  ~PidFile();

 private:
  PidFile(FileDescriptor fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  FileDescriptor fd_;
  std::string path_;
};

}  // namespace dtorch
