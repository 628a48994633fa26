#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "comm/future/local_socket.h"
#include "comm/future/snapshot.h"
#include "shm/mapped_segments.h"

namespace dtorch {

/// Names a value to come: where its server listens, and which it is. The number is random, so that only who was told
/// can ask for it.
struct ValueTicket {
  std::string path;
  std::uint64_t id = 0;
};

/// What a client sends: the value `id` is wanted, as answer to `request`.
struct ValueRequest {
  std::uint64_t request = 0;
  std::uint64_t id = 0;
};

std::string encodeRequest(const ValueRequest& request);
std::optional<ValueRequest> decodeRequest(const std::string& bytes);

/// The answer without its descriptor, which is that of the snapshot's segment.
std::string encodeReply(std::uint64_t request, const SnapshotOr& value);
struct ValueReply {
  std::uint64_t request = 0;
  SnapshotOr value;
};
/// Takes over the message's descriptor: mapped by `mapped`, or privately when that is null. nullopt: not a reply.
std::optional<ValueReply> decodeReply(LocalSocket::Message message, MappedSegments* mapped);

}  // namespace dtorch
