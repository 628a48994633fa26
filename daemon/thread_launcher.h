#pragma once
#include <memory>

#include "daemon/supervisor/worker_launcher.h"

namespace zmq {
class context_t;
}

namespace dtorch {

/// Runs workers as threads of this process, over ZeroMQ inproc: the endpoints must be bound in `context`. Part of the
/// dtorchd executable, not of the daemon's library, since it links the worker.
std::unique_ptr<WorkerLauncher> makeThreadLauncher(zmq::context_t* context);

}  // namespace dtorch
