#pragma once
#include <cstdint>
#include <string>

namespace dtorch {

/// Where in the client's program an operator was called; carried into every error message.
struct CallSite {
  std::string file;
  std::uint32_t line = 0;

  /// "train.cc:41"; empty when unknown.
  std::string toString() const;
  friend bool operator==(const CallSite&, const CallSite&) = default;
};

}  // namespace dtorch
