#pragma once
#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"

namespace grpc {
class Channel;
}

namespace dtorch {

/// Where a client looks for dtorchd: $DTORCH_SOCKET; else dtorchd.sock in the first of $XDG_RUNTIME_DIR/dtorch,
/// /run/dtorch and /tmp/dtorch-<uid> that has one; else in the one where a daemon of this user would put it.
std::string defaultAddress();
/// gRPC's form of an address: "unix:PATH" for a path, anything else ("host:port", "unix:...") as it is.
std::string grpcAddress(const std::string& address);

/// INVALID_ARGUMENT: the path of a Unix socket is longer than the system allows (gRPC would only print so).
absl::Status checkAddress(const std::string& address);

inline constexpr std::size_t kMaxMessageBytes = 64u << 20;
/// A channel to `address` that no HTTP proxy of the environment gets in the way of. Does not connect yet.
std::shared_ptr<grpc::Channel> makeChannel(const std::string& address);

}  // namespace dtorch
