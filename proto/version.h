#pragma once
#include <cstdint>

namespace dtorch {

/// Version of dtorch.v1 that this build speaks. Both sides send it in their hello and refuse another one.
inline constexpr std::uint32_t kProtocolVersion = 2;
inline constexpr const char* kDtorchVersion = "0.1.0";

}  // namespace dtorch
