#include "comm/exchange/arena.h"

#include <algorithm>

namespace dtorch {
namespace {
constexpr std::uint64_t kMagic = 0x64746f7263683031;  // "dtorch01"
constexpr std::size_t kMaxInlineBytes = 64 << 10;
constexpr std::size_t kMaxChunkBytes = 256 << 10;  // two ranks' chunks stay in the caches of two cores
constexpr std::size_t kMinInlineBytes = 4 << 10;
constexpr std::size_t kMinChunkBytes = 64 << 10;

constexpr std::size_t align(std::size_t bytes) { return (bytes + 127) / 128 * 128; }

std::size_t share(std::size_t most, std::size_t least, int ranks) {
  return std::max(least, align(most * 2 / static_cast<std::size_t>(std::max(ranks, 2))));
}
}  // namespace

std::size_t Arena::slotBytes() const {
  return align(sizeof(CallSlot)) +
         align((2 * sizeof(std::uint64_t) + sizeof(BufferRef)) * static_cast<std::size_t>(size())) + inlineBytes();
}

std::size_t Arena::rankBytes() const { return 2 * slotBytes() + 2 * chunkBytes(); }

std::size_t Arena::bytesFor(int ranks) {
  Header sizes{};
  sizes.size = ranks;
  sizes.inlineBytes = share(kMaxInlineBytes, kMinInlineBytes, ranks);
  sizes.chunkBytes = share(kMaxChunkBytes, kMinChunkBytes, ranks);
  const Arena view(reinterpret_cast<std::byte*>(&sizes));
  return align(sizeof(Header)) + static_cast<std::size_t>(ranks) * (sizeof(Progress) + view.rankBytes());
}

Arena Arena::format(std::byte* memory, const std::vector<Rank>& ranks) {
  Arena arena(memory);
  Header& header = arena.header();
  header.size = static_cast<std::int32_t>(ranks.size());
  header.inlineBytes = share(kMaxInlineBytes, kMinInlineBytes, header.size);
  header.chunkBytes = share(kMaxChunkBytes, kMinChunkBytes, header.size);
  for (int i = 0; i < header.size; ++i) arena.progress(i).rank = ranks[static_cast<std::size_t>(i)];
  header.magic = kMagic;
  return arena;
}

bool Arena::isFor(const std::vector<Rank>& ranks, std::size_t bytes) const {
  const int count = static_cast<int>(ranks.size());
  if (bytes < bytesFor(count) || header().magic != kMagic || size() != count) return false;
  for (int i = 0; i < count; ++i) {
    if (rankAt(i) != ranks[static_cast<std::size_t>(i)]) return false;
  }
  return true;
}

Rank Arena::rankAt(int index) const { return progress(index).rank; }

Arena::Progress& Arena::progress(int index) const {
  return reinterpret_cast<Progress*>(memory_ + align(sizeof(Header)))[index];
}

std::byte* Arena::rankBlock(int index) const {
  return memory_ + align(sizeof(Header)) + static_cast<std::size_t>(size()) * sizeof(Progress) +
         static_cast<std::size_t>(index) * rankBytes();
}

CallSlot& Arena::slot(int index, std::uint64_t sequence) const {
  return *reinterpret_cast<CallSlot*>(rankBlock(index) + (sequence & 1) * slotBytes());
}

std::uint64_t* Arena::sendBytes(int index, std::uint64_t sequence) const {
  return reinterpret_cast<std::uint64_t*>(rankBlock(index) + (sequence & 1) * slotBytes() + align(sizeof(CallSlot)));
}

std::uint64_t* Arena::receiveBytes(int index, std::uint64_t sequence) const {
  return sendBytes(index, sequence) + size();
}

BufferRef* Arena::parts(int index, std::uint64_t sequence) const {
  return reinterpret_cast<BufferRef*>(sendBytes(index, sequence) + 2 * size());
}

std::byte* Arena::inlineData(int index, std::uint64_t sequence) const {
  return rankBlock(index) + ((sequence & 1) + 1) * slotBytes() - inlineBytes();
}

std::byte* Arena::chunk(int index, std::uint64_t turn) const {
  return rankBlock(index) + 2 * slotBytes() + (turn & 1) * chunkBytes();
}

}  // namespace dtorch
