#include "client/cpp/element.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace dtorch {
namespace {

/// A floating-point format narrower than float.
struct SmallFloat {
  int exponentBits;
  int mantissaBits;
  int bias;
  enum Specials { kIeee, kOnlyNan, kNegativeZeroIsNan } specials;
};

std::optional<SmallFloat> smallFloat(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return SmallFloat{5, 10, 15, SmallFloat::kIeee};
    case DType::kBFloat16:
      return SmallFloat{8, 7, 127, SmallFloat::kIeee};
    case DType::kFloat8E4M3FN:
      return SmallFloat{4, 3, 7, SmallFloat::kOnlyNan};
    case DType::kFloat8E5M2:
      return SmallFloat{5, 2, 15, SmallFloat::kIeee};
    case DType::kFloat8E4M3FNUZ:
      return SmallFloat{4, 3, 8, SmallFloat::kNegativeZeroIsNan};
    case DType::kFloat8E5M2FNUZ:
      return SmallFloat{5, 2, 16, SmallFloat::kNegativeZeroIsNan};
    default:
      return std::nullopt;
  }
}

long double decode(std::uint32_t bits, const SmallFloat& format) {
  const int maxExponent = (1 << format.exponentBits) - 1;
  const int maxMantissa = (1 << format.mantissaBits) - 1;
  const int exponent = static_cast<int>(bits >> format.mantissaBits) & maxExponent;
  const int mantissa = static_cast<int>(bits) & maxMantissa;
  const bool negative = (bits >> (format.exponentBits + format.mantissaBits)) != 0;
  const long double nan = std::numeric_limits<long double>::quiet_NaN();
  long double magnitude = std::ldexp(static_cast<long double>(mantissa + (exponent == 0 ? 0 : maxMantissa + 1)),
                                     std::max(exponent, 1) - format.bias - format.mantissaBits);
  if (format.specials == SmallFloat::kNegativeZeroIsNan && negative && magnitude == 0) return nan;
  if (exponent == maxExponent) {
    if (format.specials == SmallFloat::kIeee)
      magnitude = mantissa == 0 ? std::numeric_limits<long double>::infinity() : nan;
    if (format.specials == SmallFloat::kOnlyNan && mantissa == maxMantissa) magnitude = nan;
  }
  return negative ? -magnitude : magnitude;
}

template <typename T>
T read(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof(T));
  return value;
}

std::string formatReal(long double number, DType dtype) {
  if (std::isnan(number)) return "nan";
  if (!isFloatingPoint(dtype) && !isComplex(dtype)) return absl::StrFormat("%.0Lf", number);
  const bool isDouble = dtype == DType::kFloat64 || dtype == DType::kComplex128;
  return absl::StrFormat("%.*g", isDouble ? 17 : 9, static_cast<double>(number));
}

}  // namespace

Element readElement(const std::byte* data, DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kUInt8:
      return read<std::uint8_t>(data);
    case DType::kInt8:
      return read<std::int8_t>(data);
    case DType::kUInt16:
      return read<std::uint16_t>(data);
    case DType::kInt16:
      return read<std::int16_t>(data);
    case DType::kUInt32:
      return read<std::uint32_t>(data);
    case DType::kInt32:
      return read<std::int32_t>(data);
    case DType::kUInt64:
      return read<std::uint64_t>(data);
    case DType::kInt64:
      return read<std::int64_t>(data);
    case DType::kFloat32:
      return read<float>(data);
    case DType::kFloat64:
      return read<double>(data);
    case DType::kComplex32: {
      const DType half = DType::kFloat16;
      return {readElement(data, half).real(), readElement(data + elementSize(half), half).real()};
    }
    case DType::kComplex64:
      return {read<float>(data), read<float>(data + sizeof(float))};
    case DType::kComplex128:
      return {read<double>(data), read<double>(data + sizeof(double))};
    default:
      break;
  }
  const std::optional<SmallFloat> format = smallFloat(dtype);
  if (!format) return std::numeric_limits<long double>::quiet_NaN();
  std::uint32_t bits = 0;
  std::memcpy(&bits, data, static_cast<std::size_t>(elementSize(dtype)));
  return decode(bits, *format);
}

std::string formatElement(Element element, DType dtype) {
  if (!isComplex(dtype)) return formatReal(element.real(), dtype);
  const std::string imaginary = formatReal(element.imag(), dtype);
  return absl::StrCat("(", formatReal(element.real(), dtype), imaginary[0] == '-' ? "" : "+", imaginary, "j)");
}

}  // namespace dtorch
