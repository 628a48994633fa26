#pragma once
#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "core/ids.h"

namespace dtorch {

/// The random states of one rank: each session has one for each mesh of ranks, the same on all of them. It begins as
/// that of a LibTorch process does, and all its draws are whole tensors, so that values are those of LibTorch in one
/// process.
///
/// Thread: safe.
class RandomStates {
 public:
  /// Runs `kernel`, whose draws from LibTorch's default generator are from the session's state on the mesh of `ranks`.
  /// That generator is one of the process: kernels of several ranks in it take turns.
  void run(SessionId session, const std::vector<Rank>& ranks, absl::FunctionRef<void()> kernel);
  void drop(SessionId session);
  /// All states of meshes that hold `rank` begin anew.
  void dropMeshesOf(Rank rank);

 private:
  absl::Mutex mutex_;
  absl::flat_hash_map<std::pair<SessionId, std::vector<Rank>>, at::Tensor> states_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace dtorch
