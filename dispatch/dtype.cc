#include "dispatch/dtype.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dtorch {
namespace {

constexpr std::array<std::pair<DType, c10::ScalarType>, kDTypeCount - 1> kRows = {{
    {DType::kBool, c10::ScalarType::Bool},
    {DType::kUInt8, c10::ScalarType::Byte},
    {DType::kInt8, c10::ScalarType::Char},
    {DType::kUInt16, c10::ScalarType::UInt16},
    {DType::kInt16, c10::ScalarType::Short},
    {DType::kUInt32, c10::ScalarType::UInt32},
    {DType::kInt32, c10::ScalarType::Int},
    {DType::kUInt64, c10::ScalarType::UInt64},
    {DType::kInt64, c10::ScalarType::Long},
    {DType::kFloat16, c10::ScalarType::Half},
    {DType::kBFloat16, c10::ScalarType::BFloat16},
    {DType::kFloat32, c10::ScalarType::Float},
    {DType::kFloat64, c10::ScalarType::Double},
    {DType::kComplex32, c10::ScalarType::ComplexHalf},
    {DType::kComplex64, c10::ScalarType::ComplexFloat},
    {DType::kComplex128, c10::ScalarType::ComplexDouble},
    {DType::kFloat8E4M3FN, c10::ScalarType::Float8_e4m3fn},
    {DType::kFloat8E5M2, c10::ScalarType::Float8_e5m2},
    {DType::kFloat8E4M3FNUZ, c10::ScalarType::Float8_e4m3fnuz},
    {DType::kFloat8E5M2FNUZ, c10::ScalarType::Float8_e5m2fnuz},
}};

}  // namespace

c10::ScalarType toTorch(DType dtype) {
  for (const auto& [ours, torch] : kRows) {
    if (ours == dtype) return torch;
  }
  return c10::ScalarType::Undefined;
}

absl::StatusOr<DType> fromTorch(c10::ScalarType type) {
  for (const auto& [ours, torch] : kRows) {
    if (torch == type) return ours;
  }
  return absl::UnimplementedError(absl::StrCat("dtype ", c10::toString(type), " does not cross the wire"));
}

}  // namespace dtorch
