#pragma once
#include <source_location>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cpp/session.h"
#include "client/cpp/site.h"
#include "client/cpp/tensor.h"
#include "core/memory_statistics.h"

namespace dtorch {

// What workers tell of themselves, in the order of the session's operators. No mesh: all workers.

/// Of each rank of the mesh, in its order, when the operators called so far have run. Waits. INVALID_ARGUMENT: worker
/// threads do not count.
inline absl::StatusOr<std::vector<MemoryStatistics>> memoryStatistics(Session& session, const Mesh& mesh = {},
                                                                      Site site = std::source_location::current()) {
  const auto table = session.call("dtorch::memory_stats", {}, {.mesh = mesh}, site).get().get();
  if (!table.ok()) return table.status();
  const auto values = table->values<std::int64_t>();
  if (!values.ok()) return values.status();
  std::vector<MemoryStatistics> ranks(values->size() / kMemoryColumns.size());
  for (std::size_t i = 0; i < values->size(); ++i) {
    ranks[i / kMemoryColumns.size()].*kMemoryColumns[i % kMemoryColumns.size()] = (*values)[i];
  }
  return ranks;
}
/// The peaks become what is held then.
inline void resetPeakMemory(Session& session, const Mesh& mesh = {}, Site site = std::source_location::current()) {
  session.callMany("dtorch::reset_peak_memory", {}, 0, {.mesh = mesh}, site);
}
/// Memory that workers keep for later tensors goes back to the system.
inline void emptyCache(Session& session, const Mesh& mesh = {}, Site site = std::source_location::current()) {
  session.callMany("dtorch::empty_cache", {}, 0, {.mesh = mesh}, site);
}

/// A named range of the session's operators while it lives; ranges nest. Workers log how long each took, at level
/// debug.
class RangeScope {
 public:
  RangeScope(Session& session, const std::string& name, Mesh mesh = {}, Site site = std::source_location::current())
      : session_(session), mesh_(std::move(mesh)), site_(site) {
    session_.callMany("dtorch::range_push", {name}, 0, {.mesh = mesh_}, site_);
  }
  RangeScope(const RangeScope&) = delete;
  RangeScope& operator=(const RangeScope&) = delete;
  ~RangeScope() { session_.callMany("dtorch::range_pop", {}, 0, {.mesh = mesh_}, site_); }

 private:
  Session& session_;
  const Mesh mesh_;
  const Site site_;
};
/// One named moment, likewise.
inline void mark(Session& session, const std::string& name, const Mesh& mesh = {},
                 Site site = std::source_location::current()) {
  session.callMany("dtorch::mark", {name}, 0, {.mesh = mesh}, site);
}

}  // namespace dtorch
