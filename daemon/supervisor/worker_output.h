#pragma once
#include <deque>
#include <string>
#include <vector>

#include "core/ids.h"
#include "daemon/rpc/file_descriptor.h"

namespace dtorch {

/// What a worker writes to its standard output and error: each line goes into the daemon's log with the rank before it,
/// the last 20 are kept.
/// Owns: the read end of the pipe, non-blocking.
class WorkerOutput {
 public:
  WorkerOutput(Rank rank, FileDescriptor pipe) : rank_(rank), pipe_(std::move(pipe)) {}

  int fd() const { return pipe_.get(); }
  /// Takes what the pipe holds, all of it unless more is written meanwhile. False at its end.
  bool read();
  /// An unfinished last line counts as a line.
  void finish();
  const std::deque<std::string>& lastLines() const { return lines_; }

 private:
  void add(const char* data, std::size_t bytes);

  const Rank rank_;
  FileDescriptor pipe_;
  std::string unfinished_;
  std::deque<std::string> lines_;
};

}  // namespace dtorch
