#pragma once
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "core/ids.h"
#include "worker/stream_order.h"

namespace dtorch {

/// Which operators of a cancelled session are dropped. All ranks that an operator is for must agree on it: so each rank
/// of all the groups concerned says how far its streams have begun, holds the rest, and hears how far the furthest rank
/// is; what lies past that has begun nowhere, and is dropped everywhere (CANCEL-1).
///
/// Thread: begin() and passed() by who has the stream's turn; hold(), decide() and stop() by the message loop;
/// holding() by any.
class CancelGate {
 public:
  /// Of each stream, the last operator whose first segment it has begun.
  using Begun = std::array<OperatorNumber, kStreams>;

  /// Operator `number` of `session` is about to begin on `stream`. True: it is to be dropped. Waits while that is not
  /// decided yet.
  bool begin(StreamKind stream, SessionId session, OperatorNumber number);
  /// Holds what has not begun of the session's operators `first` to `last` (of those in `only`, which ascend, unless it
  /// is empty) until decide(). How far this rank is.
  Begun hold(std::uint64_t cancel, SessionId session, OperatorNumber first, OperatorNumber last,
             std::vector<OperatorNumber> only = {});
  /// Of the operators held by `cancel`, those up to `furthest` run, the others are dropped.
  void decide(std::uint64_t cancel, const Begun& furthest);
  /// All operators of `cancel` have passed on one more stream; after the last one nothing is remembered of it.
  void passed(std::uint64_t cancel);
  /// Whether operators may be held or dropped now.
  bool holding() const { return active_.load(); }
  /// Ends all waits; what waited runs.
  void stop();

 private:
  struct Cancel {
    std::uint64_t id = 0;
    SessionId session = 0;
    OperatorNumber first = 0;
    OperatorNumber last = 0;
    std::vector<OperatorNumber> only;
    Begun begun{};
    Begun furthest{};
    bool decided = false;
    std::size_t streamsLeft = kStreams;
  };
  static constexpr std::size_t index(StreamKind stream) { return static_cast<std::size_t>(stream); }

  /// Either a stream that begins an operator sees `active_`, or hold() sees that it has begun.
  std::array<std::atomic<OperatorNumber>, kStreams> begun_{};
  std::atomic<bool> active_{false};

  std::mutex mutex_;  // guards what follows
  std::condition_variable decided_;
  std::vector<Cancel> cancels_;
  bool stopped_ = false;
};

}  // namespace dtorch
