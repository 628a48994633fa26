#pragma once
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/device_mesh.h"
#include "core/ids.h"
#include "dtorch/v1/worker.pb.h"
#include "shm/segment.h"
#include "worker/host_tensor.h"
#include "worker/kernel_runner.h"
#include "worker/value_segments.h"

namespace dtorch {

/// A decoded v1::Upload.
class UploadTask {
 public:
  /// Moves the inline bytes out of `wire`. INVALID_ARGUMENT: a field does not decode.
  static absl::StatusOr<UploadTask> create(v1::Upload& wire, DeviceMesh mesh, std::vector<std::int64_t> coordinate);
  /// This rank's part. NOT_FOUND: the segment is gone. A client's is kept by `values`, for its next upload.
  absl::StatusOr<at::Tensor> run(SessionId session, ValueSegments& values) const;

 private:
  UploadTask(DeviceMesh mesh, std::vector<std::int64_t> coordinate)
      : mesh_(std::move(mesh)), coordinate_(std::move(coordinate)) {}
  DeviceMesh mesh_;
  std::vector<std::int64_t> coordinate_;
  HostLayout host_;
  std::string inlineBytes_;
  SegmentRef segment_;
  bool inSegment_ = false;
  bool clientSegment_ = false;
};

/// Fills `out` with the value of `tensor`: its bytes inline when they are few, else in a segment of the session's,
/// which `values` keeps. A tensor that nobody else has is not copied where its own segment can be lent.
absl::Status fillValue(at::Tensor tensor, SessionId session, ValueSegments& values, v1::FetchedValue* out);

}  // namespace dtorch
