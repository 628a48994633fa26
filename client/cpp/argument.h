#pragma once
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/types/span.h"
#include "core/value.h"

namespace dtorch {

class Tensor;

/// One argument of an operator call: a tensor, a list of tensors, or anything a Value holds.
/// Refers to its tensors: it lives no longer than the expression that makes the call.
class Argument {
 public:
  /// A default-constructed Tensor is None, here and in lists.
  Argument(const Tensor& tensor) : data_(&tensor) {}  // NOLINT(google-explicit-constructor)
  Argument(
      const std::vector<Tensor>& tensors);  // NOLINT(google-explicit-constructor): defined with Tensor, in tensor.h
  Argument(absl::Span<const Tensor> tensors) : data_(tensors) {}  // NOLINT(google-explicit-constructor)
  Argument(std::nullopt_t) : data_(Value()) {}                    // NOLINT(google-explicit-constructor)
  template <typename T>
  requires std::is_constructible_v<Value, T&&> Argument(T&& value)
      : data_(Value(std::forward<T>(value))) {}  // NOLINT(google-explicit-constructor)
  template <typename T>
  requires std::is_constructible_v<Value, const T&> Argument(const std::optional<T>& value)
      : data_(Value()) {  // NOLINT(google-explicit-constructor)
    if (value.has_value()) data_.template emplace<Value>(*value);
  }

  const Tensor* tensor() const {
    const auto* pointer = std::get_if<const Tensor*>(&data_);
    return pointer == nullptr ? nullptr : *pointer;
  }
  const absl::Span<const Tensor>* tensors() const { return std::get_if<absl::Span<const Tensor>>(&data_); }
  /// nullptr for tensors and lists of them.
  const Value* value() const { return std::get_if<Value>(&data_); }

 private:
  std::variant<const Tensor*, absl::Span<const Tensor>, Value> data_;
};

using NamedArgument = std::pair<std::string, Argument>;

}  // namespace dtorch
