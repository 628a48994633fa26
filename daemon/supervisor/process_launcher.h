#pragma once
#include <memory>
#include <string>

#include "daemon/supervisor/worker_launcher.h"

namespace dtorch {

/// exec's `binary`, a path or a name in PATH, for each worker: its own process group, no descriptor of the daemon's but
/// its output, which goes line by line into the daemon's log, and the read end of its lifetime pipe (--lifetime-fd).
/// The daemon holds the write end, so the worker sees that the daemon is gone, even by kill -9.
///
/// A handle that is destroyed while its worker runs kills it. When a worker ends, what is left of its process group is
/// killed. launch() names the binary when it cannot be run.
std::unique_ptr<WorkerLauncher> makeProcessLauncher(std::string binary);

}  // namespace dtorch
