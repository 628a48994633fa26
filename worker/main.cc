#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "comm/store/shared_allocator.h"
#include "dispatch/operator_library.h"
#include "proto/version.h"
#include "worker/process_watcher.h"
#include "worker/worker.h"

namespace {

// The supervisor captures the lines and puts its own time in front of them.
void logToStderr(dtorch::Rank rank, const std::string& level) {
  auto logger = std::make_shared<spdlog::logger>("worker " + std::to_string(rank),
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%l %n: %v");
  logger->set_level(spdlog::level::from_str(level));
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace

int main(int argc, char** argv) {
  dtorch::WorkerOptions options;
  std::vector<std::string> libraries;
  int lifetimeFd = -1;
  std::string logLevel = "info";
  std::int64_t heartbeatIntervalMs = options.heartbeatInterval.count();
  std::int64_t commTimeoutMs = options.commTimeout.count();
  CLI::App app("One rank of dtorch: runs the operators that dtorchd sends. dtorchd starts it.", "dtorch-worker");
  app.add_option("--rank", options.rank, "this worker's rank")->required();
  app.add_option("--incarnation", options.incarnation, "number of this worker among the rank's")->capture_default_str();
  app.add_option("--world-size", options.worldSize, "number of ranks")->required();
  app.add_option("--device", options.device, "device of its kernels")->capture_default_str();
  app.add_option("--frames", options.frameEndpoint, "ZeroMQ endpoint of the operator frames")->required();
  app.add_option("--reports", options.reportEndpoint, "ZeroMQ endpoint of the reports")->required();
  app.add_option("--supervisor", options.supervisorTarget, "gRPC target of the heartbeats; none are sent without it");
  app.add_option("--values", options.valuesPath, "socket at which clients of this host get large values");
  app.add_option("--threads", options.threads, "threads that a kernel may use")->capture_default_str();
  app.add_option("--heartbeat-interval-ms", heartbeatIntervalMs)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--comm-timeout-ms", commTimeoutMs)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--memory-limit", options.memoryLimit, "bytes that its large tensors may hold; 0: no limit");
  app.add_option("--log-level", logLevel, "least important lines that are logged")->capture_default_str();
  app.add_option("--operator-library", libraries, "shared library that registers operators; may be given again");
  app.add_option("--lifetime-fd", lifetimeFd, "a pipe that the daemon holds open: the worker ends with it");
  app.set_version_flag("--version", std::string("dtorch-worker ") + dtorch::kDtorchVersion);
  CLI11_PARSE(app, argc, argv);
  options.heartbeatInterval = std::chrono::milliseconds(heartbeatIntervalMs);
  options.commTimeout = std::chrono::milliseconds(commTimeoutMs);

  logToStderr(options.rank, logLevel);
  dtorch::installSharedAllocator();  // peers read large tensors where they are
  if (options.memoryLimit > 0) dtorch::limitSharedAllocator(options.memoryLimit);
  for (const std::string& path : libraries) {
    const absl::StatusOr<dtorch::OperatorLibrary> library = dtorch::loadOperatorLibrary(path);
    if (library.ok()) continue;
    spdlog::error("cannot start: {}", std::string(library.status().message()));
    return EXIT_FAILURE;
  }
  dtorch::ProcessWatcher watcher(lifetimeFd);
  absl::StatusOr<std::unique_ptr<dtorch::Worker>> worker = dtorch::Worker::start(options);
  if (!worker.ok()) {
    spdlog::error("cannot start: {}", std::string(worker.status().message()));
    return EXIT_FAILURE;
  }
  watcher.start([&worker] { (*worker)->stop(absl::OkStatus()); });
  const absl::Status result = (*worker)->wait();
  watcher.stop();
  if (result.ok()) return EXIT_SUCCESS;
  spdlog::error("ended: {}", std::string(result.message()));
  return EXIT_FAILURE;
}
