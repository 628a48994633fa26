#pragma once
#include <grpcpp/support/status.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace dtorch {

/// FAILED_PRECONDITION naming both versions unless `theirs` is ours. `peer` as in "the client".
absl::Status checkProtocol(absl::string_view peer, std::uint32_t theirs);

/// The same code, and the message cut to what fits a gRPC trailer whatever its characters.
grpc::Status toGrpc(const absl::Status& status);

}  // namespace dtorch
