#include "dispatch/binding.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dispatch/dtype.h"

namespace dtorch {
namespace {

std::string text(const c10::FunctionSchema& schema) {
  std::ostringstream out;
  out << schema;
  return out.str();
}

c10::MemoryFormat torchFormat(MemoryFormat format) {
  switch (format) {
    case MemoryFormat::kContiguous:
      return c10::MemoryFormat::Contiguous;
    case MemoryFormat::kPreserve:
      return c10::MemoryFormat::Preserve;
    case MemoryFormat::kChannelsLast:
      return c10::MemoryFormat::ChannelsLast;
    case MemoryFormat::kChannelsLast3d:
      return c10::MemoryFormat::ChannelsLast3d;
  }
  return c10::MemoryFormat::Contiguous;
}

MemoryFormat formatOf(c10::MemoryFormat format) {
  switch (format) {
    case c10::MemoryFormat::Preserve:
      return MemoryFormat::kPreserve;
    case c10::MemoryFormat::ChannelsLast:
      return MemoryFormat::kChannelsLast;
    case c10::MemoryFormat::ChannelsLast3d:
      return MemoryFormat::kChannelsLast3d;
    default:
      return MemoryFormat::kContiguous;
  }
}

// The real type, which tells dtype, layout and memory format from plain ints; without Optional.
c10::TypeKind kindOf(const c10::Argument& argument) {
  const c10::TypePtr& type = argument.real_type();
  const auto* optional = type->castRaw<c10::OptionalType>();
  return optional == nullptr ? type->kind() : optional->getElementType()->kind();
}

// A schema's default as a Value; only kinds that schemas use as defaults occur.
absl::StatusOr<Value> fromDefault(const c10::Argument& argument, const c10::IValue& value) {
  if (value.isNone()) return Value();
  if (value.isBool()) return Value(value.toBool());
  if (value.isInt()) {
    const std::int64_t number = value.toInt();
    switch (kindOf(argument)) {
      case c10::TypeKind::ScalarTypeType: {
        absl::StatusOr<DType> dtype = fromTorch(static_cast<c10::ScalarType>(number));
        if (!dtype.ok()) return dtype.status();
        return Value(*dtype);
      }
      case c10::TypeKind::MemoryFormatType:
        return Value(formatOf(static_cast<c10::MemoryFormat>(number)));
      case c10::TypeKind::LayoutType:
        return Value(Layout::kStrided);
      default:
        return Value(number);
    }
  }
  if (value.isDouble()) return Value(value.toDouble());
  if (value.isString()) return Value(value.toStringRef());
  if (value.isIntList()) return Value(value.toIntVector());
  if (value.isDoubleList()) return Value(value.toDoubleVector());
  if (value.isBoolList()) {
    const auto list = value.toBoolList();
    return Value(std::vector<bool>(list.begin(), list.end()));
  }
  if (value.isList() && value.toListRef().empty()) return Value(std::vector<Value>());
  return absl::UnimplementedError(
      absl::StrCat("the default of argument '", argument.name(), "' does not cross the wire"));
}

std::optional<c10::Scalar> asScalar(const Value& value) {
  if (const auto* v = value.as<bool>()) return c10::Scalar(*v);
  if (const auto* v = value.as<std::int64_t>()) return c10::Scalar(*v);
  if (const auto* v = value.as<double>()) return c10::Scalar(*v);
  if (const auto* v = value.as<std::complex<double>>()) return c10::Scalar(c10::complex<double>(v->real(), v->imag()));
  return std::nullopt;
}

// The elements of a list argument, whichever of the list kinds it came as.
std::optional<std::vector<Value>> elementsOf(const Value& value) {
  std::vector<Value> out;
  if (const auto* values = value.as<std::vector<Value>>()) {
    out = *values;
  } else if (const auto* integers = value.as<std::vector<std::int64_t>>()) {
    for (const std::int64_t v : *integers) out.emplace_back(v);
  } else if (const auto* reals = value.as<std::vector<double>>()) {
    for (const double v : *reals) out.emplace_back(v);
  } else if (const auto* booleans = value.as<std::vector<bool>>()) {
    for (const bool v : *booleans) out.emplace_back(v);
  } else {
    return std::nullopt;
  }
  return out;
}

class Converter {
 public:
  Converter(const c10::Argument& argument, c10::Device device) : argument_(argument), device_(device) {}

  absl::StatusOr<c10::IValue> convert(const c10::TypePtr& type, const Value& value,
                                      std::optional<std::int32_t> n) const {
    switch (type->kind()) {
      case c10::TypeKind::OptionalType:
        // A factory without a device would allocate on the default one, whatever `device_` is for.
        if (value.isNone() &&
            type->castRaw<c10::OptionalType>()->getElementType()->kind() == c10::TypeKind::DeviceObjType) {
          return c10::IValue(device_);
        }
        if (value.isNone()) return c10::IValue();
        return convert(type->castRaw<c10::OptionalType>()->getElementType(), value, n);
      case c10::TypeKind::TensorType:
        if (const auto scalar = asScalar(value)) {
          at::Tensor wrapped = c10::scalar_to_tensor(*scalar);
          wrapped.unsafeGetTensorImpl()->set_wrapped_number(true);
          return c10::IValue(std::move(wrapped));
        }
        break;
      case c10::TypeKind::NumberType:
        if (const auto scalar = asScalar(value)) return c10::IValue(*scalar);
        break;
      case c10::TypeKind::IntType:
      case c10::TypeKind::SymIntType:
        if (const auto* v = value.as<std::int64_t>()) return c10::IValue(*v);
        break;
      case c10::TypeKind::FloatType:
        if (const auto* v = value.as<double>()) return c10::IValue(*v);
        if (const auto* v = value.as<std::int64_t>()) return c10::IValue(static_cast<double>(*v));
        break;
      case c10::TypeKind::BoolType:
        if (const auto* v = value.as<bool>()) return c10::IValue(*v);
        break;
      case c10::TypeKind::StringType:
        if (const auto* v = value.as<std::string>()) return c10::IValue(*v);
        break;
      case c10::TypeKind::ScalarTypeType:
        if (const auto* v = value.as<DType>()) return c10::IValue(static_cast<std::int64_t>(toTorch(*v)));
        break;
      case c10::TypeKind::LayoutType:
        if (value.as<Layout>() != nullptr) return c10::IValue(static_cast<std::int64_t>(c10::kStrided));
        break;
      case c10::TypeKind::MemoryFormatType:
        if (const auto* v = value.as<MemoryFormat>()) return c10::IValue(static_cast<std::int64_t>(torchFormat(*v)));
        break;
      case c10::TypeKind::DeviceObjType:
        if (value.as<DeviceArg>() != nullptr) return c10::IValue(device_);
        break;
      case c10::TypeKind::ListType:
        return convertList(*type->castRaw<c10::ListType>(), value, n);
      default:
        break;
    }
    return absl::InvalidArgumentError(absl::StrCat("argument '", argument_.name(), "' takes ",
                                                   argument_.real_type()->annotation_str(), ", not ",
                                                   value.toString()));
  }

 private:
  absl::StatusOr<c10::IValue> convertList(const c10::ListType& type, const Value& value,
                                          std::optional<std::int32_t> n) const {
    const c10::TypePtr& elementType = type.getElementType();
    std::optional<std::vector<Value>> elements = elementsOf(value);
    if (!elements && n && asScalar(value)) elements.emplace(static_cast<std::size_t>(*n), value);
    if (!elements) {
      return absl::InvalidArgumentError(absl::StrCat("argument '", argument_.name(), "' takes ",
                                                     argument_.real_type()->annotation_str(), ", not ",
                                                     value.toString()));
    }
    // The dispatcher knows SymInt[] as int[] when boxed.
    c10::impl::GenericList list(elementType->kind() == c10::TypeKind::SymIntType ? c10::TypePtr(c10::IntType::get())
                                                                                 : elementType);
    list.reserve(elements->size());
    for (const Value& element : *elements) {
      absl::StatusOr<c10::IValue> converted = convert(elementType, element, std::nullopt);
      if (!converted.ok()) return converted.status();
      list.push_back(*std::move(converted));
    }
    return c10::IValue(list);
  }

  const c10::Argument& argument_;
  c10::Device device_;
};

}  // namespace

namespace {

// Rules look into lists of ints, floats and numbers: they are of one kind, however a client wrote them.
Value asSchemaList(const c10::Argument& argument, Value value) {
  const c10::Type* type = argument.real_type().get();
  if (const auto* optional = type->castRaw<c10::OptionalType>()) type = optional->getElementType().get();
  const auto* list = type->castRaw<c10::ListType>();
  if (list == nullptr) return value;
  const c10::TypeKind kind = list->getElementType()->kind();
  if (kind == c10::TypeKind::FloatType) {
    const std::optional<std::vector<Value>> elements = elementsOf(value);
    std::vector<double> reals;
    for (const Value& element : elements.value_or(std::vector<Value>())) {
      if (const auto* real = element.as<double>()) reals.push_back(*real);
      if (const auto* integer = element.as<std::int64_t>()) reals.push_back(static_cast<double>(*integer));
    }
    if (!elements || reals.size() != elements->size()) return value;
    return Value(std::move(reals));
  }
  if (kind == c10::TypeKind::NumberType) {  // each has a type of its own
    std::optional<std::vector<Value>> elements = elementsOf(value);
    return elements ? Value(*std::move(elements)) : value;
  }
  if (kind != c10::TypeKind::IntType && kind != c10::TypeKind::SymIntType) {
    // An empty list says nothing of what it is a list of.
    const auto* none = value.as<std::vector<std::int64_t>>();
    return none != nullptr && none->empty() ? Value(std::vector<Value>()) : value;
  }
  if (const auto* one = value.as<std::int64_t>(); one != nullptr && argument.N()) {
    return Value(std::vector<std::int64_t>(static_cast<std::size_t>(*argument.N()), *one));
  }
  const auto* values = value.as<std::vector<Value>>();
  if (values == nullptr) return value;
  std::vector<std::int64_t> integers;
  for (const Value& element : *values) {
    const auto* integer = element.as<std::int64_t>();
    if (integer == nullptr) return value;
    integers.push_back(*integer);
  }
  return Value(std::move(integers));
}

}  // namespace

absl::StatusOr<std::vector<Value>> bindArguments(const c10::FunctionSchema& schema, const Arguments& arguments) {
  const auto& parameters = schema.arguments();
  std::vector<std::optional<Value>> bound(parameters.size());
  std::size_t positional = 0;
  while (positional < parameters.size() && !parameters[positional].kwarg_only()) ++positional;
  if (arguments.positional.size() > positional) {
    return absl::InvalidArgumentError(absl::StrCat(arguments.positional.size(), " positional arguments given, at most ",
                                                   positional, " are taken by ", text(schema)));
  }
  for (std::size_t i = 0; i < arguments.positional.size(); ++i) bound[i] = arguments.positional[i];
  for (const auto& [argumentName, value] : arguments.named) {
    const auto index = schema.argumentIndexWithName(argumentName);
    if (!index) {
      return absl::InvalidArgumentError(absl::StrCat("no argument '", argumentName, "' in ", text(schema)));
    }
    std::optional<Value>& place = bound[static_cast<std::size_t>(*index)];
    if (place) return absl::InvalidArgumentError(absl::StrCat("argument '", argumentName, "' is given twice"));
    place = value;
  }
  std::vector<Value> complete;
  complete.reserve(parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (bound[i]) {
      complete.push_back(asSchemaList(parameters[i], *std::move(bound[i])));
      continue;
    }
    if (!parameters[i].default_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("argument '", parameters[i].name(), "' is missing; the schema is ", text(schema)));
    }
    absl::StatusOr<Value> value = fromDefault(parameters[i], *parameters[i].default_value());
    if (!value.ok()) return value.status();
    complete.push_back(*std::move(value));
  }
  return complete;
}

absl::StatusOr<c10::IValue> toIValue(const c10::Argument& argument, const Value& value, c10::Device device) {
  return Converter(argument, device).convert(argument.real_type(), value, argument.N());
}

}  // namespace dtorch
