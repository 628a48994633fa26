#include "dispatch/operator_policy.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace dtorch {
namespace {

struct Row {
  absl::string_view name;  // without overload: all of them
  absl::string_view reason;
};

constexpr const char* kIndices = "it does not check its indices";
constexpr const char* kShapes = "it does not check its shapes";
constexpr const char* kStrides = "it does not check its sizes and strides";
constexpr const char* kResizes = "it changes how much memory its tensor has";

// "name*": all that begin so. The "_copy" forms are denied with their originals.
constexpr std::array<Row, 23> kDenied = {{
    {"aten::from_file", "it reads and writes any file of the worker's user"},
    {"aten::_sparse_coo_tensor_unsafe", kIndices},
    {"aten::_sparse_compressed_tensor_unsafe", kIndices},
    {"aten::_sparse_csr_tensor_unsafe", kIndices},
    {"aten::_sparse_csc_tensor_unsafe", kIndices},
    {"aten::_sparse_bsr_tensor_unsafe", kIndices},
    {"aten::_sparse_bsc_tensor_unsafe", kIndices},
    {"aten::_convert_indices_from_csr_to_coo", kIndices},
    {"aten::_convert_indices_from_coo_to_csr", kIndices},
    {"aten::_reshape_alias", kStrides},
    {"aten::_nested_*", kStrides},
    {"aten::set_", kStrides},
    {"aten::set", kStrides},
    {"aten::set_data", kStrides},
    {"aten::resize*", kResizes},
    {"aten::_resize_output*", kResizes},
    {"aten::_copy_from_and_resize", kResizes},
    {"aten::sparse_resize*", kResizes},
    {"aten::_fused_moving_avg_obs_fq_helper*", kShapes},
    {"aten::fused_moving_avg_obs_fake_quant", kShapes},
    {"aten::mkldnn_rnn_layer*", kShapes},
    {"aten::_pin_memory", "it needs a GPU"},
    {"aten::_efficientzerotensor", "its tensor has no memory"},
}};

bool matches(absl::string_view pattern, absl::string_view name) {
  return absl::ConsumeSuffix(&pattern, "*") ? absl::StartsWith(name, pattern) : name == pattern;
}

bool matchesAny(const std::vector<std::string>& patterns, absl::string_view name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return matches(pattern, name); });
}

absl::Status refusal(const std::string& name, absl::string_view reason) {
  return absl::PermissionDeniedError(absl::StrCat("operator '", name, "' is not allowed: ", reason));
}

}  // namespace

OperatorPolicy::OperatorPolicy(std::vector<std::string> allowed, std::vector<std::string> denied,
                               std::vector<std::string> library)
    : allowed_(std::move(allowed)), denied_(std::move(denied)), library_(library.begin(), library.end()) {}

absl::Status OperatorPolicy::check(const std::string& name) const {
  absl::string_view base = absl::string_view(name).substr(0, name.find('.'));
  // Whoever denies an operator means its in-place and list forms, too.
  std::string functional(base);
  if (const std::size_t list = functional.find("::_foreach_"); list != std::string::npos) functional.erase(list + 2, 9);
  if (functional.size() > 2 && functional.back() == '_' && functional[functional.size() - 2] != '_')
    functional.pop_back();
  if (matchesAny(denied_, base) || matchesAny(denied_, functional)) return refusal(name, "operators.deny names it");
  if (matchesAny(allowed_, base) || library_.contains(base)) return absl::OkStatus();
  if (absl::StartsWith(base, "dtorch::")) return absl::OkStatus();
  // LibTorch's own helpers of other namespaces (inductor, prim, ...) trust their callers.
  if (!absl::StartsWith(base, "aten::")) {
    return refusal(name, "only those of aten, dtorch and the libraries of operators.libraries are");
  }
  absl::ConsumeSuffix(&base, "_copy");
  for (const Row& row : kDenied) {
    if (matches(row.name, base)) return refusal(name, row.reason);
  }
  return absl::OkStatus();
}

}  // namespace dtorch
