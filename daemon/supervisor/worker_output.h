#pragma once
#include <sys/types.h>

#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "core/ids.h"
#include "daemon/file_descriptor.h"

namespace dtorch {

/// What a worker writes to its standard output and error: each line goes into the daemon's log with the rank before it,
/// the last 20 are kept.
/// Owns: the read end of the pipe, non-blocking. Thread: the supervisor's; lastLines() from any.
class WorkerOutput {
 public:
  WorkerOutput(Rank rank, FileDescriptor pipe) : rank_(rank), pipe_(std::move(pipe)) {}

  int fd() const { return pipe_.get(); }
  /// Takes some of what the pipe holds, little enough to be soon done. False at its end.
  bool read();
  /// The writer has ended: takes all that it left. An unfinished last line counts as a line.
  void drain();
  std::vector<std::string> lastLines() const;

 private:
  ssize_t readChunk();
  void add(const char* data, std::size_t bytes);

  const Rank rank_;
  const FileDescriptor pipe_;
  std::string unfinished_;
  mutable std::mutex mutex_;
  std::deque<std::string> lines_;  // guarded by mutex_
};

}  // namespace dtorch
