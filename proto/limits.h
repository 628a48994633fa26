#pragma once
#include <cstddef>

namespace dtorch {

/// Values up to this size travel inside a message; larger ones come in chunks, or lie in a shared segment.
inline constexpr std::size_t kInlineBytes = 64u << 10;

}  // namespace dtorch
