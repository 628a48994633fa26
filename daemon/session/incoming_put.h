#pragma once
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/ids.h"
#include "daemon/graph/tensor_layout.h"
#include "daemon/session/definitions.h"
#include "daemon/session/time_limit.h"
#include "dtorch/v1/client.pb.h"
#include "dtorch/v1/worker.pb.h"
#include "shm/segment.h"

namespace dtorch {

/// What a put gives its tensor. `part_shapes`, when it has any, must be what each rank holds.
/// INVALID_ARGUMENT, NOT_FOUND (the mesh).
absl::StatusOr<TensorLayout> checkPut(const v1::Put& put, const Definitions& definitions);

/// A tensor whose bytes are coming in, in one message or many.
///
/// Thread: the controller loop's.
class IncomingPut {
 public:
  /// `lease` is let go when a segment of the client's has been read, or will not be.
  IncomingPut(const v1::Put& put, std::uint32_t site, TimeLimit timeLimit, std::shared_ptr<const void> lease)
      : tensor_(put.tensor()),
        site_(site),
        timeLimit_(timeLimit),
        totalBytes_(put.total_bytes()),
        received_(put.has_segment() ? totalBytes_ : 0),
        memory_(std::move(lease)) {}

  /// Prepares for bytes of a tensor of this layout. RESOURCE_EXHAUSTED: no memory for it. INVALID_ARGUMENT: its own
  /// segment does not hold it.
  absl::Status open(const v1::Put& put, const TensorLayout* layout);
  /// Takes the next bytes. INVALID_ARGUMENT: they are not those.
  absl::Status checkNext(const v1::PutChunk& chunk) const;
  /// RESOURCE_EXHAUSTED: no memory for them. What comes before open(), or after an error, is swallowed.
  absl::Status receive(const std::string& data);
  bool complete() const { return received_ == totalBytes_; }

  TensorId tensor() const { return tensor_; }
  std::uint32_t site() const { return site_; }
  const TimeLimit& timeLimit() const { return timeLimit_; }
  std::uint64_t totalBytes() const { return totalBytes_; }
  /// Null: it was refused.
  const TensorLayout* layout() const { return layout_; }
  /// Its bytes, once complete: the command for the workers, and the memory that must live until they have run it.
  v1::Upload takeUpload(OperandId operand);
  std::shared_ptr<const void> takeMemory() { return std::move(memory_); }

  bool waiting = false;       // complete, but its group is not usable yet
  OperandFailurePtr failure;  // the bytes that still come are swallowed

 private:
  const TensorId tensor_;
  const std::uint32_t site_;
  const TimeLimit timeLimit_;
  const std::uint64_t totalBytes_;
  std::uint64_t received_;
  const TensorLayout* layout_ = nullptr;
  v1::Upload upload_;
  std::shared_ptr<Segment> segment_;  // for bytes that come in pieces
  std::shared_ptr<const void> memory_;
};

}  // namespace dtorch
