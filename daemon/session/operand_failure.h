#pragma once
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "core/ids.h"
#include "dtorch/v1/types.pb.h"

namespace dtorch {

/// What a caller can do about a failure is told by its code (docs/operations.md). Of these two kernels know nothing.
inline constexpr absl::StatusCode kWorkerLost = absl::StatusCode::kAborted;
inline constexpr absl::StatusCode kTensorLost = absl::StatusCode::kDataLoss;

/// The first cause why a tensor has no value; shared by everything that depends on it.
struct OperandFailure {
  absl::Status status;
  std::string operatorName;
  Rank rank = -1;         // -1: on the daemon
  std::string site;       // of the client's call
  bool observed = false;  // some future has delivered it
};
using OperandFailurePtr = std::shared_ptr<OperandFailure>;

/// The message becomes "aten::mm at train.cc:41: <why>".
void toWire(const OperandFailure& failure, v1::Status* out);

}  // namespace dtorch
