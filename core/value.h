#pragma once
#include <complex>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/dtype.h"
#include "core/placement.h"

namespace dtorch {

/// An argument that is the `index`-th tensor of the call's inputs.
struct TensorArg {
  std::uint32_t index = 0;
  friend bool operator==(const TensorArg&, const TensorArg&) = default;
};

/// A list of tensors; an entry without value is None (Tensor?[]).
struct TensorListArg {
  std::vector<std::optional<std::uint32_t>> indices;
  friend bool operator==(const TensorListArg&, const TensorListArg&) = default;
};

/// Planner to worker only: the sizes of the local part of a tensor of the global `shape`, placed as `placements` on the
/// plan's mesh. Each worker works them out from its own coordinate.
struct LocalSizes {
  std::vector<std::int64_t> shape;
  Placements placements;
  friend bool operator==(const LocalSizes&, const LocalSizes&) = default;
};

/// Planner to worker only: where the local part of such a tensor begins along `dim`, or how long it is there.
struct LocalRange {
  enum class Part : std::uint8_t { kOffset = 1, kLength = 2 };
  std::vector<std::int64_t> shape;
  Placements placements;
  int dim = 0;
  Part part = Part::kOffset;
  friend bool operator==(const LocalRange&, const LocalRange&) = default;
};

enum class MemoryFormat : std::uint8_t { kContiguous = 1, kPreserve = 2, kChannelsLast = 3, kChannelsLast3d = 4 };
enum class Layout : std::uint8_t { kStrided = 1 };

/// "cpu", "cuda" or "meta": the device arguments of ATen factories; the worker puts its own in place.
struct DeviceArg {
  std::string text;
  friend bool operator==(const DeviceArg&, const DeviceArg&) = default;
};

/// One argument of an operator, as the client gave it. Numbers keep their kind and every bit: an int64 stays an int64.
class Value {
 public:
  using Variant = std::variant<std::monostate, bool, std::int64_t, double, std::complex<double>, std::string, DType,
                               DeviceArg, Layout, MemoryFormat, TensorArg, TensorListArg, std::vector<std::int64_t>,
                               std::vector<double>, std::vector<bool>, std::vector<Value>, LocalSizes, LocalRange>;

  Value() = default;
  template <typename T>
  requires std::is_constructible_v<Variant, T&&> &&
      (!std::is_arithmetic_v<std::remove_cvref_t<T>>)&&(!std::is_same_v<std::remove_cvref_t<T>, Value>)Value(T&& value)
      : value_(std::forward<T>(value)) {}  // NOLINT(google-explicit-constructor): arguments read as literals
  /// Numbers become bool, int64 or double.
  template <typename T>
  requires std::is_arithmetic_v<T> Value(T value) : value_(number(value)) {}  // NOLINT(google-explicit-constructor)
  Value(const char* text) : value_(std::string(text)) {}                      // NOLINT(google-explicit-constructor)

  bool isNone() const { return std::holds_alternative<std::monostate>(value_); }
  template <typename T>
  const T* as() const {
    return std::get_if<T>(&value_);
  }
  const Variant& variant() const { return value_; }
  /// Compact text for error messages: "Tensor#0", "[1, 2]", "None".
  std::string toString() const;

  friend bool operator==(const Value& a, const Value& b);

 private:
  template <typename T>
  static Variant number(T value) {
    if constexpr (std::is_same_v<T, bool>) {
      return value;
    } else if constexpr (std::is_integral_v<T>) {
      return static_cast<std::int64_t>(value);
    } else {
      return static_cast<double>(value);
    }
  }

  Variant value_;
};

/// The tensors that `value` is a list of, in whichever form it came; nullopt: it is something else. An empty list is
/// one of tensors, too.
std::optional<TensorListArg> tensorListOf(const Value& value);

/// The arguments of a call without its tensors: positional ones, then named ones, as ATen schemas name them.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
  friend bool operator==(const Arguments&, const Arguments&) = default;
};

}  // namespace dtorch
