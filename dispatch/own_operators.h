#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "core/memory_statistics.h"

namespace dtorch {

/// Makes the operators of the namespace dtorch known to LibTorch's dispatcher:
/// - dtorch::manual_seed(int seed) -> (), dtorch::get_rng_state() -> Tensor, dtorch::set_rng_state(Tensor state) -> ():
///   of the session's random state on the call's mesh; a state is torch.get_rng_state()'s.
/// - dtorch::local_indices(Tensor indices, int offset, int length, int size) -> (Tensor, Tensor),
///   dtorch::rows_or_zeros(Tensor self, int dim, Tensor indices, Tensor elsewhere) -> Tensor,
///   dtorch::entries_or_zeros(Tensor self, int dim, Tensor indices, Tensor elsewhere) -> Tensor: steps of placement
///   programs, for tables and classes that are split.
/// - dtorch::memory_stats() -> Tensor: each rank's MemoryStatistics, as a row of int64 (kMemoryColumns).
/// - dtorch::reset_peak_memory() -> (): the peaks become what is held now.
/// - dtorch::empty_cache() -> (): memory that is kept for later tensors goes back to the system.
/// - what composed_operators.h lists.
/// - dtorch::range_push(str name) -> (), dtorch::range_pop() -> (), dtorch::mark(str name) -> (): see OperatorHost.
void registerOwnOperators();

/// Whether each rank's result is its own: one row of the whole, which is sharded along dimension 0 over the mesh.
bool tellsOfItsRank(const std::string& name);

/// What runs the kernels of a thread, for operators of ours that tell of it or act on it. Without one they tell of
/// nothing and do nothing: their metadata is all that is asked then.
class OperatorHost {
 public:
  virtual ~OperatorHost() = default;
  /// nullopt: not counted here.
  virtual std::optional<MemoryStatistics> memoryStatistics() = 0;
  virtual void resetPeakMemory() = 0;
  virtual void releaseCachedMemory() = 0;
  /// Ranges of the session's operators, nested; false: too many are open, none is open.
  virtual bool pushRange(const std::string& name) = 0;
  virtual bool popRange() = 0;
  virtual void mark(const std::string& name) = 0;
};

/// While it lives, `host` is that of this thread.
class OperatorHostScope {
 public:
  explicit OperatorHostScope(OperatorHost& host);
  OperatorHostScope(const OperatorHostScope&) = delete;
  OperatorHostScope& operator=(const OperatorHostScope&) = delete;
  ~OperatorHostScope();
};

}  // namespace dtorch
