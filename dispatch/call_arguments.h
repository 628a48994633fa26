#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace dtorch {

/// The arguments of a boxed call by their names. Borrows both.
class CallArguments {
 public:
  CallArguments(const c10::FunctionSchema& schema, const torch::jit::Stack& stack) : schema_(schema), stack_(stack) {}

  /// Null: the schema has no such argument.
  const c10::IValue* find(absl::string_view name) const;
  /// Null: it is None, or there is none.
  const at::Tensor* tensor(absl::string_view name) const;
  /// A tensor whose values can be read; null: there is none, or it has only metadata.
  const at::Tensor* values(absl::string_view name) const;
  std::int64_t integer(absl::string_view name, std::int64_t otherwise) const;
  bool flag(absl::string_view name) const;
  /// A list of ints, or the ints that a tensor holds; nullopt: neither.
  std::optional<std::vector<std::int64_t>> integers(absl::string_view name) const;
  /// INVALID_ARGUMENT that names operator and argument.
  absl::Status refuse(absl::string_view argument, absl::string_view why) const;

 private:
  const c10::FunctionSchema& schema_;
  const torch::jit::Stack& stack_;
};

/// OK, or why a kernel must not see these arguments. May throw as LibTorch does.
using ArgumentCheck = std::function<absl::Status(const CallArguments&)>;

/// The extent of a dimension, negative ones counted from behind; `otherwise`: there is no such tensor or dimension.
std::int64_t sizeOr(const at::Tensor* tensor, std::int64_t dim, std::int64_t otherwise);

/// OK when `argument` has as many elements as the kernel will look at, or is none.
absl::Status hasElements(const CallArguments& call, absl::string_view argument, std::int64_t wanted);

}  // namespace dtorch
