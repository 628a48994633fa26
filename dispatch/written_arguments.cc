#include "dispatch/written_arguments.h"

#include <algorithm>
#include <array>

#include "absl/strings/string_view.h"

namespace dtorch {
namespace {

// In training they update their running statistics, which their schemas do not tell.
constexpr std::array<absl::string_view, 7> kUpdateStatistics = {
    "aten::batch_norm",    "aten::native_batch_norm",       "aten::cudnn_batch_norm",       "aten::miopen_batch_norm",
    "aten::instance_norm", "aten::batch_norm_update_stats", "aten::_batch_norm_impl_index",
};

}  // namespace

bool isWritten(const c10::FunctionSchema& schema, std::size_t argument) {
  const c10::Argument& parameter = schema.arguments()[argument];
  if (const c10::AliasInfo* alias = parameter.alias_info(); alias != nullptr) {
    if (alias->isWrite()) return true;
    // Of a list, Tensor(a!)[], the elements carry it.
    const auto& elements = alias->containedTypes();
    if (std::any_of(elements.begin(), elements.end(), [](const c10::AliasInfo& of) { return of.isWrite(); }))
      return true;
  }
  if (parameter.name() != "running_mean" && parameter.name() != "running_var") return false;
  return std::find(kUpdateStatistics.begin(), kUpdateStatistics.end(), schema.name()) != kUpdateStatistics.end();
}

}  // namespace dtorch
