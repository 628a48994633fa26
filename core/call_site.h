#pragma once
#include <cstdint>
#include <source_location>
#include <string>

namespace dtorch {

/// Where in the client's program an operator was called; carried into every error message.
struct CallSite {
  std::string file;
  std::uint32_t line = 0;

  static CallSite of(const std::source_location& where) { return {where.file_name(), where.line()}; }
  /// "train.cc:41"; empty when unknown.
  std::string toString() const;
  friend bool operator==(const CallSite&, const CallSite&) = default;
};

}  // namespace dtorch
