#pragma once
#include <cstddef>
#include <cstdint>

namespace dtorch {

/// Values up to this size travel inside a message; larger ones come in chunks, or lie in a shared segment.
inline constexpr std::size_t kInlineBytes = 64u << 10;

/// Meshes that a session may define.
inline constexpr std::uint32_t kMaxMeshes = 4096;
/// The arguments of one call besides its tensors, on the wire.
inline constexpr std::size_t kMaxArgumentBytes = 16u << 20;
/// Commands of one message: an empty one takes two bytes on the wire, and forty times as much in memory.
inline constexpr std::size_t kMaxCommands = 1u << 17;

}  // namespace dtorch
