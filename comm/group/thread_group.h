#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/exchange/group_backend.h"
#include "core/placement.h"

namespace dtorch {

/// Says on whose behalf a collective runs; part of its fingerprint and of every error about it.
struct CallTag {
  std::uint64_t operatorNumber = 0;
  std::string name;
};

/// One rank's handle on the collectives of an ordered set of ranks. Every rank of the group makes the same calls in the
/// same order. Inputs are never changed; results are new tensors.
///
/// Thread: one caller at a time (a communication stream); abort() from any thread.
/// Errors: INVALID_ARGUMENT on all ranks before anything moves, where LibTorch cannot reduce the dtype so;
///   FAILED_PRECONDITION on all ranks when their calls differ (names ranks, both calls, sequence): the group is
///   unusable afterwards and says so; UNAVAILABLE naming the peer that died; DEADLINE_EXCEEDED; ABORTED.
class ThreadGroup {
 public:
  virtual ~ThreadGroup() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Chosen by where the group's ranks are.
  virtual GroupBackend backend() const = 0;

  virtual absl::StatusOr<at::Tensor> allReduce(const at::Tensor& input, ReduceOp op, const CallTag& tag) = 0;
  /// Concatenates all ranks' tensors along `dim`; `lengths[r]` is rank r's extent there, the other extents are equal.
  virtual absl::StatusOr<at::Tensor> allGather(const at::Tensor& input, int dim,
                                               const std::vector<std::int64_t>& lengths, const CallTag& tag) = 0;
  /// Reduces, then keeps this rank's part of `dim`; `lengths[r]` is what rank r keeps.
  virtual absl::StatusOr<at::Tensor> reduceScatter(const at::Tensor& input, ReduceOp op, int dim,
                                                   const std::vector<std::int64_t>& lengths, const CallTag& tag) = 0;
  /// Sends `inputs[r]` to rank r and returns what each rank sent here; `shapes[r]` is the shape expected from rank r.
  virtual absl::StatusOr<std::vector<at::Tensor>> allToAll(const std::vector<at::Tensor>& inputs,
                                                           const std::vector<std::vector<std::int64_t>>& shapes,
                                                           const CallTag& tag) = 0;
  virtual absl::StatusOr<at::Tensor> broadcast(const at::Tensor& input, int root, const CallTag& tag) = 0;
  virtual absl::Status barrier(const CallTag& tag) = 0;

  /// Takes part in the group's next call as a rank whose input could not be computed: every rank's call returns `why`.
  /// The group stays usable. `why` may carry a kFailureCause (comm/exchange/failure_cause.h).
  virtual absl::Status fail(const absl::Status& why, const CallTag& tag) = 0;
  /// Why no call can succeed any more; OK while they can.
  virtual absl::Status broken() const = 0;
  /// Ends this rank's running call and all later ones with `why`; peers see ABORTED.
  virtual void abort(const absl::Status& why) = 0;
};

}  // namespace dtorch
