#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/ids.h"

namespace zmq {
class context_t;
}

namespace dtorch {

struct WorkerOptions {
  Rank rank = 0;
  std::uint64_t incarnation = 0;  // of the rank's workers
  int worldSize = 1;
  std::string device = "cpu";
  /// ZeroMQ endpoints that the daemon has bound: ipc:// for a process, inproc:// for a thread.
  std::string frameEndpoint;
  std::string reportEndpoint;
  /// gRPC target of the daemon's Supervisor service: "unix:/run/dtorch/workers.sock".
  std::string supervisorTarget;
  /// Socket at which clients of this host get large values; empty: they get them from the daemon.
  std::string valuesPath;
  /// Threads that one kernel may use.
  int threads = 1;
  std::chrono::milliseconds heartbeatInterval{1000};
  std::chrono::milliseconds commTimeout{600000};
  /// What its large tensors may hold together, in bytes; 0: no limit. Of a process, not of a thread.
  std::uint64_t memoryLimit = 0;
};

/// One rank: receives frames, runs their operators on its streams, reports back and sends heartbeats. The same class is
/// the whole of dtorch-worker and, in thread mode, lives in threads of dtorchd.
///
/// Thread: start and wait from the owner's thread, stop from any.
/// Owns: its threads, sockets, tensor table and groups.
class Worker {
 public:
  /// `context` is the daemon's in thread mode (inproc needs the same one); null makes a context of its own.
  static absl::StatusOr<std::unique_ptr<Worker>> start(const WorkerOptions& options, zmq::context_t* context = nullptr);
  ~Worker();

  /// Returns when the worker has ended: OK after the daemon's Shutdown or stop(), else why it gave up.
  absl::Status wait();
  /// Ends it: running collectives are aborted, queued operators dropped. Idempotent, any thread.
  void stop(const absl::Status& why);

 private:
  class Impl;
  explicit Worker(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtorch
