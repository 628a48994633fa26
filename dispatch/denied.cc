#include "dispatch/denied.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace dtorch {
namespace {

struct Row {
  absl::string_view name;  // without overload: all of them
  absl::string_view reason;
};

constexpr std::array<Row, 11> kDenied = {{
    {"aten::from_file", "it reads and writes any file of the worker's user"},
    {"aten::_sparse_coo_tensor_unsafe", "it does not check its indices"},
    {"aten::_sparse_compressed_tensor_unsafe", "it does not check its indices"},
    {"aten::_sparse_csr_tensor_unsafe", "it does not check its indices"},
    {"aten::_sparse_csc_tensor_unsafe", "it does not check its indices"},
    {"aten::_sparse_bsr_tensor_unsafe", "it does not check its indices"},
    {"aten::_sparse_bsc_tensor_unsafe", "it does not check its indices"},
    {"aten::_convert_indices_from_csr_to_coo", "it does not check its indices"},
    {"aten::_convert_indices_from_coo_to_csr", "it does not check its indices"},
    {"aten::_reshape_alias", "it does not check its sizes and strides"},
    {"aten::set_", "it does not check its sizes and strides"},
}};

}  // namespace

absl::Status checkAllowed(const std::string& name) {
  const std::string base = name.substr(0, name.find('.'));
  // LibTorch's own helpers of other namespaces (inductor, prim, ...) trust their callers.
  if (base.rfind("aten::", 0) != 0) {
    return absl::PermissionDeniedError(absl::StrCat("operator '", name, "' is not allowed: only those of aten are"));
  }
  for (const Row& row : kDenied) {
    if (row.name == base) {
      return absl::PermissionDeniedError(absl::StrCat("operator '", name, "' is not allowed: ", row.reason));
    }
  }
  return absl::OkStatus();
}

}  // namespace dtorch
