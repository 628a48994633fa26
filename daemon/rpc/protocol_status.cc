#include "daemon/rpc/protocol_status.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "proto/codec.h"
#include "proto/version.h"

namespace dtorch {

absl::Status checkProtocol(absl::string_view peer, std::uint32_t theirs) {
  if (theirs == kProtocolVersion) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(peer, " speaks version ", theirs, " of the protocol, this daemon (dtorch ", kDtorchVersion,
                   ") version ", kProtocolVersion, ": install the same release of dtorch on both sides"));
}

grpc::Status toGrpc(const absl::Status& status) {
  // gRPC percent-encodes the message, three bytes for one at worst, and a peer takes 8 KiB of trailers.
  constexpr std::size_t kMaxMessage = 2048;
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.code()), printable(std::string(status.message()), kMaxMessage)};
}

}  // namespace dtorch
