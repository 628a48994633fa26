#include "dispatch/call_arguments.h"

#include "absl/strings/str_cat.h"

namespace dtorch {

const c10::IValue* CallArguments::find(absl::string_view name) const {
  const auto index = schema_.argumentIndexWithName(std::string(name));
  return index ? &stack_[static_cast<std::size_t>(*index)] : nullptr;
}

const at::Tensor* CallArguments::tensor(absl::string_view name) const {
  const c10::IValue* value = find(name);
  return value != nullptr && value->isTensor() && value->toTensor().defined() ? &value->toTensor() : nullptr;
}

const at::Tensor* CallArguments::values(absl::string_view name) const {
  const at::Tensor* given = tensor(name);
  return given != nullptr && given->is_cpu() && given->layout() == c10::kStrided ? given : nullptr;
}

std::int64_t CallArguments::integer(absl::string_view name, std::int64_t otherwise) const {
  const c10::IValue* value = find(name);
  return value != nullptr && value->isInt() ? value->toInt() : otherwise;
}

bool CallArguments::flag(absl::string_view name) const {
  const c10::IValue* value = find(name);
  return value != nullptr && value->isBool() && value->toBool();
}

std::optional<std::vector<std::int64_t>> CallArguments::integers(absl::string_view name) const {
  const c10::IValue* value = find(name);
  if (value != nullptr && value->isIntList()) return value->toIntVector();
  const at::Tensor* given = values(name);
  if (given == nullptr || !at::isIntegralType(given->scalar_type(), false)) return std::nullopt;
  const at::Tensor wide = given->to(at::kLong).contiguous();
  const auto* first = wide.const_data_ptr<std::int64_t>();
  return std::vector<std::int64_t>(first, first + wide.numel());
}

absl::Status CallArguments::refuse(absl::string_view argument, absl::string_view why) const {
  return absl::InvalidArgumentError(absl::StrCat(schema_.name(), ": argument '", argument, "' ", why));
}

std::int64_t sizeOr(const at::Tensor* tensor, std::int64_t dim, std::int64_t otherwise) {
  return tensor == nullptr || dim >= tensor->dim() || dim < -tensor->dim() ? otherwise : tensor->size(dim);
}

absl::Status hasElements(const CallArguments& call, absl::string_view argument, std::int64_t wanted) {
  const at::Tensor* given = call.tensor(argument);
  if (given == nullptr || given->numel() >= wanted) return absl::OkStatus();
  return call.refuse(argument, absl::StrCat("has ", given->numel(), " elements where ", wanted, " are read"));
}

}  // namespace dtorch
