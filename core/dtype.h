#pragma once
#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace dtorch {

/// Element types that cross the wire. The numbers are part of the protocol (dtorch.v1.DType).
enum class DType : std::uint8_t {
  kUnspecified = 0,
  kBool = 1,
  kUInt8 = 2,
  kInt8 = 3,
  kUInt16 = 4,
  kInt16 = 5,
  kUInt32 = 6,
  kInt32 = 7,
  kUInt64 = 8,
  kInt64 = 9,
  kFloat16 = 10,
  kBFloat16 = 11,
  kFloat32 = 12,
  kFloat64 = 13,
  kComplex32 = 14,
  kComplex64 = 15,
  kComplex128 = 16,
  kFloat8E4M3FN = 17,
  kFloat8E5M2 = 18,
  kFloat8E4M3FNUZ = 19,
  kFloat8E5M2FNUZ = 20,
};
inline constexpr int kDTypeCount = 21;

/// Bytes of one element; 0 for kUnspecified.
int elementSize(DType dtype);
/// PyTorch's name without "torch.": "float32", "int64", "float8_e4m3fn".
absl::string_view name(DType dtype);
std::optional<DType> parseDType(absl::string_view name);
bool isFloatingPoint(DType dtype);
bool isComplex(DType dtype);

}  // namespace dtorch
