#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/exchange/call.h"
#include "comm/exchange/failure_cause.h"
#include "comm/exchange/peer_memory.h"
#include "core/ids.h"

namespace dtorch {

/// What one rank says of its next call: the fingerprint, how much it sends, or that it has failed.
struct CallSlot {
  static constexpr std::size_t kMaxText = 2048;

  std::uint64_t sequence;
  Call call;
  /// Not 0: this rank's input could not be computed; an absl::StatusCode with `failText`.
  std::int32_t failCode;
  std::uint32_t failTextBytes;
  /// The bytes are in the inline area, not streamed through chunks.
  bool isInline;
  /// Largest part for one destination, in bytes; 0 when inline.
  std::uint64_t largestPart;
  /// Whether the others reach all that this rank sends (and receives, for all_reduce) where it is.
  bool isDirect;
  /// The output of an all_reduce.
  BufferRef output;
  std::array<char, kMaxText> failText;
  /// What the failure's kFailureCause payload holds.
  std::uint32_t failCauseBytes;
  std::array<char, kMaxFailureCause> failCause;
};

/// The memory that the ranks of one group share, laid out in any zero-filled block: progress words, call slots, small
/// payloads and chunk buffers. A view: it owns nothing.
///
/// Everything but the atomics is written by one rank and read by others after that rank's progress word says so.
class Arena {
 public:
  static std::size_t bytesFor(int ranks);
  /// Prepares a zero-filled block; done by one rank before the others see it.
  static Arena format(std::byte* memory, const std::vector<Rank>& ranks);
  explicit Arena(std::byte* memory) : memory_(memory) {}

  /// False: not an arena of exactly these ranks.
  bool isFor(const std::vector<Rank>& ranks, std::size_t bytes) const;
  int size() const { return header().size; }
  Rank rankAt(int index) const;
  /// Room for a small payload beside a call slot, and in one chunk buffer. Multiples of 64.
  std::size_t inlineBytes() const { return header().inlineBytes; }
  std::size_t chunkBytes() const { return header().chunkBytes; }

  /// Counts the steps that rank `index` has taken, modulo 2^32.
  std::atomic<std::uint32_t>& posted(int index) const { return progress(index).posted; }
  /// Ranks asleep until posted(index) changes.
  std::atomic<std::uint32_t>& sleepers(int index) const { return progress(index).sleepers; }
  /// The processor on which rank `index` took its last step.
  std::atomic<std::int32_t>& processor(int index) const { return progress(index).processor; }

  /// Two of each, used in turn: a rank writes one again only when all others have read it (see Lockstep).
  CallSlot& slot(int index, std::uint64_t sequence) const;
  std::uint64_t* sendBytes(int index, std::uint64_t sequence) const;
  std::uint64_t* receiveBytes(int index, std::uint64_t sequence) const;
  /// Where the parts lie, one for each destination.
  BufferRef* parts(int index, std::uint64_t sequence) const;
  std::byte* inlineData(int index, std::uint64_t sequence) const;
  std::byte* chunk(int index, std::uint64_t turn) const;

  /// Why a rank finds the group unusable. Written once, by that rank.
  struct Reason {
    std::int32_t code;
    std::uint32_t textBytes;
    std::array<char, CallSlot::kMaxText> text;
  };
  Reason& reason(int index) const { return progress(index).reason; }
  /// 0 while the group is usable; else one more than the rank whose reason counts, the first to set it.
  std::atomic<std::uint32_t>& breaker() const { return header().breaker; }

 private:
  struct Header {
    std::uint64_t magic;
    std::int32_t size;
    std::uint64_t inlineBytes;
    std::uint64_t chunkBytes;
    std::atomic<std::uint32_t> breaker;
  };
  struct alignas(128) Progress {
    std::atomic<std::uint32_t> posted;
    std::atomic<std::uint32_t> sleepers;
    std::atomic<std::int32_t> processor;
    Rank rank;
    Reason reason;
  };

  Header& header() const { return *reinterpret_cast<Header*>(memory_); }
  Progress& progress(int index) const;
  std::byte* rankBlock(int index) const;
  std::size_t slotBytes() const;
  std::size_t rankBytes() const;

  std::byte* memory_;
};

}  // namespace dtorch
