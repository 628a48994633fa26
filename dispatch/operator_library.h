#pragma once
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace dtorch {

/// What an operator library has brought.
struct OperatorLibrary {
  /// Operators that LibTorch's dispatcher did not know before, without overloads: "mylib::scale_rows".
  std::vector<std::string> operators;
  /// What its function dtorch_placement_rules returns, if it has one: a line a rule (docs/operators-of-your-own.md).
  std::string placementRules;
};

/// Loads a shared library that registers operators (TORCH_LIBRARY) into this process, for good. INVALID_ARGUMENT: it
/// cannot be loaded, or throws while it registers them.
absl::StatusOr<OperatorLibrary> loadOperatorLibrary(const std::string& path);

}  // namespace dtorch
