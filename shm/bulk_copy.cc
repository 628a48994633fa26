#include "shm/bulk_copy.h"

#include <emmintrin.h>

#include <cstdint>
#include <cstring>

namespace dtorch {
namespace {
constexpr std::size_t kStreamed = std::size_t{4} << 20;
constexpr std::size_t kLine = 64;
}  // namespace

void bulkCopy(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes < kStreamed) {
    std::memcpy(to, from, bytes);
    return;
  }
  const std::size_t head = (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine;
  std::memcpy(to, from, head);
  std::size_t done = head;
  for (; bytes - done >= kLine; done += kLine) {
    // Whole lines at a time: a write of part of one would have to be combined with what is there.
    const auto* source = reinterpret_cast<const __m128i*>(from + done);
    auto* target = reinterpret_cast<__m128i*>(to + done);
    const __m128i a = _mm_loadu_si128(source);
    const __m128i b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2);
    const __m128i d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  _mm_sfence();  // such writes are not ordered with a later store that says that they are there
  std::memcpy(to + done, from + done, bytes - done);
}

}  // namespace dtorch
