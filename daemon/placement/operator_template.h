#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/value.h"
#include "daemon/graph/tensor_layout.h"
#include "dispatch/operator_policy.h"

namespace dtorch {

/// An operator with all arguments but the tensors themselves, checked against its schema.
struct OperatorTemplate {
  std::string name;
  c10::OperatorHandle op;
  std::vector<Value> arguments;  // complete, in schema order
  std::uint32_t inputs = 0;      // tensors
  std::uint32_t outputs = 0;
  /// Inputs that it writes to.
  std::vector<std::uint32_t> written;
  /// The input whose memory its outputs share, or may share, where it is not written to.
  std::optional<std::uint32_t> viewed;
  /// Which output is which written input, changed in place or given as out=: (output, input).
  std::vector<std::pair<std::uint32_t, std::uint32_t>> returned;
  /// Not OK: every call is refused for it. What a call was to write to is known then.
  absl::Status refusal;
  /// Where the outputs go when there is no tensor input.
  const PlacedMesh* mesh = nullptr;
  Placements placements;

  /// Checks name, arguments and permission. `outputs` is what the caller expects.
  /// NOT_FOUND, INVALID_ARGUMENT, PERMISSION_DENIED, UNIMPLEMENTED (results that are neither tensors nor numbers,
  /// operators that change their tensor's shape in place).
  static absl::StatusOr<OperatorTemplate> create(const OperatorPolicy& policy, const std::string& name,
                                                 const Arguments& arguments, std::uint32_t outputs,
                                                 const PlacedMesh* mesh, Placements placements);

 private:
  explicit OperatorTemplate(c10::OperatorHandle handle) : op(std::move(handle)) {}
};

}  // namespace dtorch
