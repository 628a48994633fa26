#pragma once
#include <cstdint>

#include "absl/status/statusor.h"

namespace dtorch {

/// Tells whether one process has ended, at once and without being its parent. Holds that very process: a later one that
/// gets the same id is not taken for it.
///
/// Owns: a pidfd. Thread: safe.
class ProcessWatch {
 public:
  ProcessWatch() = default;
  /// NOT_FOUND: no such process.
  static absl::StatusOr<ProcessWatch> open(std::int64_t pid);
  ProcessWatch(ProcessWatch&& other) noexcept;
  ProcessWatch& operator=(ProcessWatch&& other) noexcept;
  ~ProcessWatch();

  bool exited() const;
  std::int64_t pid() const { return pid_; }

 private:
  int fd_ = -1;
  std::int64_t pid_ = 0;
};

}  // namespace dtorch
