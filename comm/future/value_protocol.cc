#include "comm/future/value_protocol.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace dtorch {
namespace {

/// Both ends run on one host and are of one version: the struct is the format. `dims` extents follow, then `bytes`
/// bytes of elements, or of the error's text.
struct ReplyHeader {
  std::uint64_t request = 0;
  std::int32_t code = 0;
  DType dtype = DType::kUnspecified;
  bool hasSegment = false;
  std::uint32_t dims = 0;
  std::uint32_t bytes = 0;
};
constexpr std::size_t kMaxText = 4096;
constexpr std::uint32_t kMaxDims = 64;

template <typename T>
std::string bytesOf(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(T)};
}

std::size_t elementsOf(const Snapshot& value) {
  std::size_t count = 1;
  for (const std::int64_t extent : value.shape) count *= static_cast<std::size_t>(extent);
  return count;
}

absl::StatusOr<std::shared_ptr<Segment>> mapSegment(int descriptor, MappedSegments* mapped) {
  if (mapped != nullptr) return mapped->adopt(descriptor);
  auto segment = Segment::adoptPrivately(descriptor);
  if (!segment.ok()) return segment.status();
  return std::make_shared<Segment>(*std::move(segment));
}

SnapshotOr decodeValue(const ReplyHeader& header, const std::string& rest, int descriptor, MappedSegments* mapped) {
  auto value = std::make_shared<Snapshot>();
  value->dtype = header.dtype;
  value->shape.resize(header.dims);
  std::memcpy(value->shape.data(), rest.data(), header.dims * sizeof(std::int64_t));
  value->bytes = rest.substr(header.dims * sizeof(std::int64_t));
  if (header.hasSegment) {
    if (descriptor < 0) {
      return absl::ResourceExhaustedError("a value came without its memory: this process has too many open files");
    }
    auto segment = mapSegment(descriptor, mapped);
    if (!segment.ok()) return segment.status();
    value->segment = *std::move(segment);
  }
  const std::size_t there = value->segment ? value->segment->size() : value->bytes.size();
  if (elementsOf(*value) * static_cast<std::size_t>(elementSize(value->dtype)) > there) {
    return absl::InternalError("a value came with less memory than it has elements");
  }
  return value;
}

}  // namespace

std::string encodeRequest(const ValueRequest& request) { return bytesOf(request); }

std::optional<ValueRequest> decodeRequest(const std::string& bytes) {
  ValueRequest request;
  if (bytes.size() != sizeof(request)) return std::nullopt;
  std::memcpy(&request, bytes.data(), sizeof(request));
  return request;
}

std::string encodeReply(std::uint64_t request, const SnapshotOr& value) {
  ReplyHeader header;
  header.request = request;
  std::string rest;
  if (value.ok()) {
    const Snapshot& snapshot = **value;
    header.dtype = snapshot.dtype;
    header.hasSegment = snapshot.segment != nullptr;
    header.dims = static_cast<std::uint32_t>(snapshot.shape.size());
    rest.assign(reinterpret_cast<const char*>(snapshot.shape.data()), snapshot.shape.size() * sizeof(std::int64_t));
    rest += snapshot.bytes;
    header.bytes = static_cast<std::uint32_t>(snapshot.bytes.size());
  } else {
    header.code = value.status().raw_code();
    rest = std::string(value.status().message().substr(0, kMaxText));
    header.bytes = static_cast<std::uint32_t>(rest.size());
  }
  return bytesOf(header) + rest;
}

std::optional<ValueReply> decodeReply(LocalSocket::Message message, MappedSegments* mapped) {
  ReplyHeader header;
  const bool whole = message.bytes.size() >= sizeof(header);
  if (whole) std::memcpy(&header, message.bytes.data(), sizeof(header));
  if (!whole || header.dims > kMaxDims ||
      message.bytes.size() != sizeof(header) + header.dims * sizeof(std::int64_t) + header.bytes) {
    if (message.descriptor >= 0) ::close(message.descriptor);
    return std::nullopt;
  }
  const std::string rest = message.bytes.substr(sizeof(header));
  if (header.code != 0)
    return ValueReply{header.request, absl::Status(static_cast<absl::StatusCode>(header.code), rest)};
  return ValueReply{header.request, decodeValue(header, rest, message.descriptor, mapped)};
}

}  // namespace dtorch
