#pragma once
// Read by clang-tidy 14 before every file, by no compiler: libstdc++'s <source_location> is empty for a clang without
// __builtin_source_location, which came with version 15.
#if defined(__clang__) && __clang_major__ < 15
#include <cstdint>
namespace std {
struct source_location {
  static constexpr source_location current(const char* file = __builtin_FILE(),
                                           const char* function = __builtin_FUNCTION(),
                                           uint_least32_t line = __builtin_LINE(),
                                           uint_least32_t column = __builtin_COLUMN()) noexcept {
    source_location result;
    result.file_ = file;
    result.function_ = function;
    result.line_ = line;
    result.column_ = column;
    return result;
  }
  constexpr const char* file_name() const noexcept { return file_; }
  constexpr const char* function_name() const noexcept { return function_; }
  constexpr uint_least32_t line() const noexcept { return line_; }
  constexpr uint_least32_t column() const noexcept { return column_; }

 private:
  const char* file_ = "";
  const char* function_ = "";
  uint_least32_t line_ = 0;
  uint_least32_t column_ = 0;
};
}  // namespace std
#endif
