#include "dispatch/written_arguments.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace dtorch {
namespace {

// In training they update their running statistics, which their schemas do not tell.
constexpr std::array<absl::string_view, 7> kUpdateStatistics = {
    "aten::batch_norm",    "aten::native_batch_norm",       "aten::cudnn_batch_norm",       "aten::miopen_batch_norm",
    "aten::instance_norm", "aten::batch_norm_update_stats", "aten::_batch_norm_impl_index",
};

// What is written only if the argument `asker` is true or a tensor.
struct Asked {
  absl::string_view op;
  absl::string_view written;  // the beginning of its name
  absl::string_view asker;
};
constexpr auto kAsked = std::to_array<Asked>({
    {"aten::batch_norm", "running_", "training"},
    {"aten::native_batch_norm", "running_", "training"},
    {"aten::cudnn_batch_norm", "running_", "training"},
    {"aten::miopen_batch_norm", "running_", "training"},
    {"aten::_batch_norm_impl_index", "running_", "training"},
    {"aten::instance_norm", "running_", "use_input_stats"},
    {"aten::_fused_adam_", "grads", "grad_scale"},
    {"aten::_fused_adamw_", "grads", "grad_scale"},
    {"aten::_fused_sgd_", "grads", "grad_scale"},
});

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

bool isWritten(const c10::FunctionSchema& schema, std::size_t argument, absl::Span<const Value> arguments) {
  if (!isWritten(schema, argument)) return false;
  const std::string& name = schema.arguments()[argument].name();
  const auto* asked = std::find_if(kAsked.begin(), kAsked.end(), [&](const Asked& each) {
    return each.op == schema.name() && absl::StartsWith(name, each.written);
  });
  if (asked == kAsked.end()) return true;
  const std::optional<int> asker = schema.argumentIndexWithName(std::string(asked->asker));
  const Value* value = asker ? &arguments[static_cast<std::size_t>(*asker)] : nullptr;
  if (value == nullptr) return true;
  const bool* flag = value->as<bool>();
  return flag != nullptr ? *flag : !value->isNone();
}

}  // namespace dtorch
