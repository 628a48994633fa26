#pragma once
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "core/ids.h"
#include "dispatch/own_operators.h"
#include "spdlog/logger.h"

namespace dtorch {

/// The worker as operators of the namespace dtorch see it: its memory is that of its process; its ranges go into its
/// log, at level debug, with the time that each took on the compute stream, and to LibTorch's CUDA profiler (NVTX) when
/// there is one.
///
/// Thread: the compute stream's.
class WorkerHost final : public OperatorHost {
 public:
  explicit WorkerHost(std::shared_ptr<spdlog::logger> log) : log_(std::move(log)) {}

  /// Whose operator runs next.
  void enter(SessionId session) { session_ = session; }
  /// Its open ranges are forgotten.
  void drop(SessionId session);

  std::optional<MemoryStatistics> memoryStatistics() override;
  void resetPeakMemory() override;
  void releaseCachedMemory() override;
  bool pushRange(const std::string& name) override;
  bool popRange() override;
  void mark(const std::string& name) override;

 private:
  struct OpenRange {
    std::string path;  // of the names of those around it, and its own
    std::chrono::steady_clock::time_point begin;
  };
  const std::shared_ptr<spdlog::logger> log_;
  SessionId session_ = 0;
  absl::flat_hash_map<SessionId, std::vector<OpenRange>> ranges_;
};

}  // namespace dtorch
