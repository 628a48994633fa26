#include "core/dtype.h"

#include <array>
#include <cstddef>

namespace dtorch {
namespace {

struct Row {
  absl::string_view name;
  int size;
  bool floating;
};

// Indexed by DType.
constexpr std::array<Row, kDTypeCount> kRows = {{
    {"unspecified", 0, false},    {"bool", 1, false},         {"uint8", 1, false},      {"int8", 1, false},
    {"uint16", 2, false},         {"int16", 2, false},        {"uint32", 4, false},     {"int32", 4, false},
    {"uint64", 8, false},         {"int64", 8, false},        {"float16", 2, true},     {"bfloat16", 2, true},
    {"float32", 4, true},         {"float64", 8, true},       {"complex32", 4, false},  {"complex64", 8, false},
    {"complex128", 16, false},    {"float8_e4m3fn", 1, true}, {"float8_e5m2", 1, true}, {"float8_e4m3fnuz", 1, true},
    {"float8_e5m2fnuz", 1, true},
}};

}  // namespace

int elementSize(DType dtype) { return kRows[static_cast<std::size_t>(dtype)].size; }

absl::string_view name(DType dtype) { return kRows[static_cast<std::size_t>(dtype)].name; }

bool isFloatingPoint(DType dtype) { return kRows[static_cast<std::size_t>(dtype)].floating; }

bool isComplex(DType dtype) {
  return dtype == DType::kComplex32 || dtype == DType::kComplex64 || dtype == DType::kComplex128;
}

std::optional<DType> parseDType(absl::string_view text) {
  for (std::size_t i = 1; i < kRows.size(); ++i) {
    if (kRows[i].name == text) return static_cast<DType>(i);
  }
  return std::nullopt;
}

}  // namespace dtorch
