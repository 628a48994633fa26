#pragma once
#include <cstdint>

namespace dtorch {

/// A tensor as its session names it; the client allocates these, 0 is never used.
using TensorId = std::uint64_t;
/// A tensor as the daemon and its workers name it, unique over all sessions of one daemon: the session's number in the
/// upper 24 bits, a count of the session's own in the lower 40.
using OperandId = std::uint64_t;
using FutureId = std::uint64_t;
using SessionId = std::uint64_t;
/// An ordered set of ranks that can run collectives together; also names the ZeroMQ topic of those ranks.
using GroupId = std::uint64_t;
using PlanId = std::uint64_t;
/// Position of an operator in the daemon's one total order.
using OperatorNumber = std::uint64_t;
using Rank = std::int32_t;

inline constexpr int kSessionShift = 40;
inline constexpr SessionId kMaxSession = (SessionId{1} << 24) - 1;
/// The session that an operand or a fence belongs to.
constexpr SessionId sessionOf(OperandId operand) { return operand >> kSessionShift; }

}  // namespace dtorch
