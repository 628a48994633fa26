#include "worker/worker_host.h"

#include <torch/csrc/profiler/stubs/base.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/store/shared_allocator.h"
#include "proto/codec.h"

namespace dtorch {
namespace {

constexpr std::size_t kMaxOpenRanges = 1024;  // of one session
constexpr std::size_t kMaxName = 256;         // bytes of a path in the log

// NVTX, where LibTorch has CUDA; null where it has not.
const torch::profiler::impl::ProfilerStubs* profiler() {
  const torch::profiler::impl::ProfilerStubs* stubs = torch::profiler::impl::cudaStubs();
  return stubs->enabled() ? stubs : nullptr;
}

}  // namespace

void WorkerHost::drop(SessionId session) {
  const auto it = ranges_.find(session);
  if (it == ranges_.end()) return;
  for (std::size_t i = 0; profiler() != nullptr && i < it->second.size(); ++i) profiler()->rangePop();
  ranges_.erase(it);
}

std::optional<MemoryStatistics> WorkerHost::memoryStatistics() { return dtorch::memoryStatistics(); }
void WorkerHost::resetPeakMemory() { dtorch::resetPeakMemory(); }
void WorkerHost::releaseCachedMemory() { dtorch::releaseCachedMemory(); }

bool WorkerHost::pushRange(const std::string& name) {
  std::vector<OpenRange>& open = ranges_[session_];
  if (open.size() >= kMaxOpenRanges) return false;
  if (profiler() != nullptr) profiler()->rangePush(name.c_str());
  const std::string path = open.empty() ? name : absl::StrCat(open.back().path, "/", name);
  open.push_back({printable(path, kMaxName), std::chrono::steady_clock::now()});
  log_->debug("session {}: range {} begins", session_, open.back().path);
  return true;
}

bool WorkerHost::popRange() {
  std::vector<OpenRange>& open = ranges_[session_];
  if (open.empty()) return false;
  if (profiler() != nullptr) profiler()->rangePop();
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - open.back().begin;
  log_->debug("session {}: range {} took {:.3f} ms", session_, open.back().path, took.count());
  open.pop_back();
  return true;
}

void WorkerHost::mark(const std::string& name) {
  if (profiler() != nullptr) profiler()->mark(name.c_str());
  log_->debug("session {}: mark {}", session_, printable(name, kMaxName));
}

}  // namespace dtorch
