#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace dtorch {

enum class StreamKind : std::uint8_t { kCompute = 0, kCommunication = 1 };
inline constexpr std::size_t kStreams = 2;
constexpr StreamKind otherStream(StreamKind kind) {
  return kind == StreamKind::kCompute ? StreamKind::kCommunication : StreamKind::kCompute;
}

/// Position of a task on its stream, from 1.
using Ticket = std::uint64_t;

/// Works out which task of the other stream a task must wait for (0: none). Tasks only ever wait for ones enqueued
/// before them, so streams cannot wait for each other in a circle.
///
/// WORKER-1: a task runs after the producers of its inputs. A mutating task runs after all that was enqueued before it,
/// on both streams, and before all that is enqueued after it: whatever it may alias, no other task can tell.
///
/// Thread: the message loop's.
class StreamOrder {
 public:
  /// Enqueues a task on `on` that needs the other stream's tasks up to `needed`. Returns what it must wait for.
  Ticket enqueue(StreamKind on, Ticket needed, bool mutates) {
    const std::size_t self = index(on);
    const std::size_t other = index(otherStream(on));
    const Ticket ticket = ++issued_[self];
    needed = std::max(needed, mutates ? issued_[other] : barrier_[self]);
    if (mutates) barrier_[other] = ticket;
    if (needed <= waited_[self]) return 0;
    waited_[self] = needed;
    return needed;
  }
  /// Ticket of the last task enqueued on `on`.
  Ticket issued(StreamKind on) const { return issued_[index(on)]; }

 private:
  static constexpr std::size_t index(StreamKind kind) { return static_cast<std::size_t>(kind); }
  std::array<Ticket, kStreams> issued_{};
  std::array<Ticket, kStreams> waited_{};   // of the other stream's tasks, by this stream
  std::array<Ticket, kStreams> barrier_{};  // the last mutating task of the other stream
};

}  // namespace dtorch
