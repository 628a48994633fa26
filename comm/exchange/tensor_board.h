#pragma once
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "comm/exchange/peer_memory.h"
#include "core/dtype.h"

namespace dtorch {

/// What a rank has set for others to read, laid out in any zero-filled block that they share. A view: it owns nothing.
///
/// An entry goes from free to set (by its owner, who wrote the rest before), is finished by its readers, and is freed
/// by its owner. Everything but the atomics is written by one side and read by the other after the atomic says so.
class TensorBoard {
 public:
  using Deadline = std::chrono::steady_clock::time_point;
  static constexpr std::size_t kEntries = 256;
  static constexpr std::size_t kMaxDims = 16;
  /// With the zero at their ends.
  static constexpr std::size_t kMaxKey = 96;
  static constexpr std::size_t kMaxReason = 256;

  struct Description {
    DType dtype = DType::kUnspecified;
    bool empty = false;
    std::int32_t dims = 0;
    std::array<std::int64_t, kMaxDims> shape{};
    std::array<std::int64_t, kMaxDims> strides{};
    BufferRef data;
  };

  struct Entry {
    std::atomic<std::uint32_t> isSet;
    /// How many readers are done.
    std::atomic<std::uint32_t> finished;
    /// Grows with everything that the owner sets.
    std::atomic<std::uint64_t> generation;
    /// The first reader that refuses the tensor sets it, then writes why, then finishes.
    std::atomic<std::uint32_t> refused;
    std::array<char, kMaxReason> reason;
    std::uint32_t readers;
    std::array<char, kMaxKey> key;
    Description what;
  };

  static std::size_t bytes();
  explicit TensorBoard(std::byte* memory);

  /// Owner, one thread at a time. nullptr: all entries are set.
  Entry* set(const std::string& key, const Description& what, std::uint32_t readers, std::uint64_t generation) const;
  /// Owner.
  static void free(Entry& entry);
  /// Readers: the entry of `key` that was set after generation `after`; nullptr: there is none.
  Entry* find(const std::string& key, std::uint64_t after) const;
  /// Readers: done with what they found at `generation`; `refusal` is empty or says why they refuse it. False: more
  /// readers finish than were announced. Who waits must be rung.
  static bool finish(Entry& entry, std::uint64_t generation, const std::string& refusal);

  /// Counts what happened that concerns the owner, who sleeps on it.
  std::uint32_t changes() const;
  void ring() const;
  /// Owner: sleeps until changes() is not `seen`.
  void awaitChange(std::uint32_t seen, Deadline deadline) const;

  /// How many barriers the owner has come to.
  std::atomic<std::uint32_t>& barriers() const;
  /// Not 0: the owner closed it.
  std::atomic<std::uint32_t>& left() const;

 private:
  struct Layout;
  Layout* layout_;
};

}  // namespace dtorch
