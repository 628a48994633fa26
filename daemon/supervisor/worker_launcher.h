#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/ids.h"

namespace dtorch {

/// How a worker was asked to run; the launcher turns it into a process or threads.
struct WorkerSpec {
  Rank rank = 0;
  std::uint64_t incarnation = 0;  // of the rank's workers, ever larger; the supervisor's to set
  int worldSize = 1;
  std::string device = "cpu";
  std::string frameEndpoint;
  std::string reportEndpoint;
  std::string supervisorTarget;
  std::string valuesPath;  // where clients of this host get large values
  int threads = 1;
  std::chrono::milliseconds heartbeatInterval{1000};
  std::chrono::milliseconds commTimeout{600000};
  std::uint64_t memoryLimit = 0;               // bytes of large tensors; 0: none
  std::vector<std::string> operatorLibraries;  // loaded at its start
  std::string logLevel = "info";               // spdlog's name of the least important lines
};

/// A running worker. Thread: readOutput() and takeExit() are the supervisor thread's and may take their time; the
/// others come from any thread, also while readOutput() runs, and return at once.
class WorkerHandle {
 public:
  virtual ~WorkerHandle() = default;
  virtual std::int64_t pid() const = 0;
  /// Becomes readable when the worker has ended (a pidfd, an eventfd).
  virtual int exitFd() const = 0;
  /// After exitFd became readable: "exit code 1", "killed by signal 9 (SIGKILL)"; called once, last. Takes what is left
  /// of the output, for lastLines().
  virtual std::string takeExit() = 0;
  /// Readable when the worker has written to its log; -1: the log is the daemon's own.
  virtual int outputFd() const { return -1; }
  /// Takes some of what outputFd() has. False when nothing more will come.
  virtual bool readOutput() { return false; }
  /// The last lines that it logged.
  virtual std::vector<std::string> lastLines() const = 0;
  /// Asks it to end (SIGTERM), then, `force`, ends it (SIGKILL to its process group).
  virtual void terminate(bool force) = 0;
};

/// Starts workers: ProcessLauncher here, the thread launcher in the dtorchd executable, fakes in tests. Thread: safe.
class WorkerLauncher {
 public:
  virtual ~WorkerLauncher() = default;
  virtual absl::StatusOr<std::unique_ptr<WorkerHandle>> launch(const WorkerSpec& spec) = 0;
};

}  // namespace dtorch
