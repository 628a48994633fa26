#include "shm/bulk_copy.h"

#include <cstdint>
#include <vector>

#include "tests/catch.h"

namespace dtorch {

TEST_CASE("every byte is copied, and none beside, whatever the alignment") {
  constexpr std::size_t kRoom = (4 << 20) + 4096;
  std::vector<std::byte> from(kRoom);
  std::uint32_t state = 1;
  for (std::byte& byte : from) byte = static_cast<std::byte>((state = state * 1664525 + 1013904223) >> 24);
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{100}, std::size_t{4} << 20, (std::size_t{4} << 20) + 77}) {
    for (const std::size_t shift : {0, 1, 16, 63, 64}) {
      std::vector<std::byte> to(kRoom, std::byte{0xAA});
      bulkCopy(to.data() + shift, from.data() + 5, bytes);
      bool right = true;
      for (std::size_t i = 0; i < kRoom; ++i) {
        const bool inside = i >= shift && i - shift < bytes;
        right = right && to[i] == (inside ? from[i - shift + 5] : std::byte{0xAA});
      }
      CHECK(right);
    }
  }
}

}  // namespace dtorch
