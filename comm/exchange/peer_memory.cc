#include "comm/exchange/peer_memory.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace dtorch {

PeerMemory::PeerMemory(const SharedHeap* heap) : pid_(::getpid()), heap_(heap) {}

BufferRef PeerMemory::describeHere(const std::byte* data) const {
  BufferRef buffer;
  buffer.pid = pid_;
  buffer.address = reinterpret_cast<std::uintptr_t>(data);
  return buffer;
}

BufferRef PeerMemory::describe(const std::byte* data, std::size_t bytes) const {
  BufferRef buffer = describeHere(data);
  if (heap_ == nullptr) return buffer;
  if (const auto where = heap_->locate(data, bytes)) {
    buffer.segment = where->segment;
    buffer.offset = where->offset;
  }
  return buffer;
}

absl::StatusOr<PeerMemory::Access> PeerMemory::open(const BufferRef& buffer) {
  if (buffer.pid == pid_) return Access{reinterpret_cast<std::byte*>(buffer.address), nullptr};
  if (!buffer.isShared()) {
    return absl::FailedPreconditionError(absl::StrCat("memory of process ", buffer.pid, " is not shared"));
  }
  auto segment = mapped_.map(buffer.segment);
  if (!segment.ok()) return segment.status();
  return Access{(*segment)->data() + buffer.offset, *std::move(segment)};
}

}  // namespace dtorch
