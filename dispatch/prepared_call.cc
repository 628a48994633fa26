#include "dispatch/prepared_call.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include <new>
#include <optional>
#include <stdexcept>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dispatch/binding.h"
#include "dispatch/index_check.h"
#include "dispatch/own_operators.h"
#include "dispatch/shape_check.h"
#include "dispatch/written_arguments.h"

namespace dtorch {
namespace {

const c10::Type& withoutOptional(const c10::Type& type) {
  const auto* optional = type.castRaw<c10::OptionalType>();
  return optional == nullptr ? type : *optional->getElementType();
}

absl::Status mismatch(const c10::Argument& parameter, const Value& value) {
  return absl::InvalidArgumentError(absl::StrCat("argument '", parameter.name(), "' takes ",
                                                 parameter.type()->annotation_str(), ", not ", value.toString()));
}

// As torch.tensor() of a Python number, in twice the precision: the number itself is a double.
at::ScalarType typeOf(const at::Scalar& scalar) {
  if (scalar.isBoolean()) return at::kBool;
  if (scalar.isIntegral(false)) return at::kLong;
  return scalar.isComplex() ? at::kComplexDouble : at::kDouble;
}

at::Tensor nothing() { return at::empty({0}, at::kBool); }

// Numbers are returned as tensors without dimensions, lists of ints as tensors of one.
absl::Status collect(c10::IValue& value, std::vector<at::Tensor>* outputs) {
  if (value.isTensor()) {
    outputs->push_back(std::move(value).toTensor());
    // What was not asked for (output_mask).
    if (!outputs->back().defined()) outputs->back() = nothing();
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) outputs->push_back(tensor);
  } else if (value.isNone()) {
    outputs->push_back(nothing());
  } else if (value.isScalar()) {
    outputs->push_back(at::scalar_tensor(value.toScalar(), typeOf(value.toScalar())));
  } else if (value.isIntList()) {
    outputs->push_back(at::tensor(value.toIntVector(), at::kLong));
  } else {
    return absl::UnimplementedError(absl::StrCat("its result is a ", value.tagKind(), "; only tensors are returned"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status fromException(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return absl::ResourceExhaustedError("out of memory");
  const auto* torch = dynamic_cast<const c10::Error*>(&error);
  // LibTorch's checks of values throw standard exceptions here and there.
  if (dynamic_cast<const std::runtime_error*>(&error) != nullptr && torch == nullptr) {
    return absl::InvalidArgumentError(error.what());
  }
  if (torch == nullptr) return absl::InternalError(error.what());
  const std::string text = torch->what_without_backtrace();
  if (dynamic_cast<const c10::NotImplementedError*>(torch) != nullptr) return absl::UnimplementedError(text);
  if (dynamic_cast<const c10::OutOfMemoryError*>(torch) != nullptr || absl::StrContains(text, "DefaultCPUAllocator")) {
    return absl::ResourceExhaustedError(text);
  }
  return absl::InvalidArgumentError(text);
}

std::string nameOf(const c10::OperatorName& op) {
  return absl::StrCat(op.name, op.overload_name.empty() ? "" : ".", op.overload_name);
}

absl::StatusOr<c10::OperatorHandle> findOperator(const std::string& name) {
  registerOwnOperators();
  const std::size_t dot = name.find('.');
  const c10::OperatorName wanted(name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1));
  if (const auto op = c10::Dispatcher::singleton().findSchema(wanted)) return *op;
  std::vector<std::string> overloads;
  for (const c10::OperatorName& other : c10::Dispatcher::singleton().getAllOpNames()) {
    if (other.name == wanted.name) overloads.push_back(nameOf(other));
  }
  if (overloads.empty()) {
    return absl::NotFoundError(absl::StrCat(
        "no operator '", name, "'; names are those of PyTorch's schemas, as aten::mm or aten::add.Tensor"));
  }
  return absl::NotFoundError(
      absl::StrCat("no operator '", name, "'; its overloads are ", absl::StrJoin(overloads, ", ")));
}

PreparedCall::PreparedCall(c10::OperatorHandle op)
    : op_(std::move(op)),
      shapeCheck_(shapeCheckOf(op_.schema().name())),
      indexCheck_(indexCheckOf(op_.schema().name())),
      memoryOrder_(memoryOrderOf(op_.schema().name())),
      uninitialized_(absl::StartsWith(op_.operator_name().name, "aten::empty") ||
                     absl::StartsWith(op_.operator_name().name, "aten::new_empty")) {}

absl::StatusOr<PreparedCall> PreparedCall::create(c10::OperatorHandle op, const std::vector<Value>& arguments,
                                                  at::Device device) {
  const auto& parameters = op.schema().arguments();
  if (parameters.size() != arguments.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(arguments.size(), " arguments given, the schema has ", parameters.size()));
  }
  PreparedCall call(op);
  call.constants_.reserve(arguments.size());
  try {
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const c10::Type& type = withoutOptional(*parameters[i].type());
      if (const auto* tensor = arguments[i].as<TensorArg>()) {
        if (type.kind() != c10::TypeKind::TensorType) return mismatch(parameters[i], arguments[i]);
        call.holes_.push_back({i, {}, tensor->index, false, false});
        call.constants_.emplace_back();
        continue;
      }
      const auto* list = type.castRaw<c10::ListType>();
      if (list != nullptr && !arguments[i].isNone()) {
        const c10::Type& element = *list->getElementType();
        if (withoutOptional(element).kind() == c10::TypeKind::TensorType) {
          std::optional<TensorListArg> tensors = tensorListOf(arguments[i]);
          if (!tensors) return mismatch(parameters[i], arguments[i]);
          const bool complete =
              std::find(tensors->indices.begin(), tensors->indices.end(), std::nullopt) == tensors->indices.end();
          if (!complete && element.kind() != c10::TypeKind::OptionalType) {
            return absl::InvalidArgumentError(
                absl::StrCat("argument '", parameters[i].name(), "' holds None where it takes tensors only"));
          }
          call.holes_.push_back({i, *std::move(tensors), 0, true, element.kind() == c10::TypeKind::OptionalType});
          call.constants_.emplace_back();
          continue;
        }
      }
      absl::StatusOr<c10::IValue> constant = toIValue(parameters[i], arguments[i], device);
      if (!constant.ok()) return constant.status();
      call.constants_.push_back(*std::move(constant));
    }
  } catch (const std::exception& error) {
    return fromException(error);
  }
  return call;
}

std::string PreparedCall::argumentOf(std::uint32_t index) const {
  for (const Hole& hole : holes_) {
    const std::string& argument = op_.schema().arguments()[hole.argument].name();
    if (!hole.isList && hole.index == index) return argument;
    for (std::size_t i = 0; i < hole.list.indices.size(); ++i) {
      if (hole.list.indices[i] == index) return absl::StrCat(argument, "[", i, "]");
    }
  }
  return "";
}

absl::StatusOr<at::Tensor> PreparedCall::inOrder(const at::Tensor& tensor, std::size_t argument) const {
  if (lies(tensor, memoryOrder_)) return tensor;
  if (!isWritten(op_.schema(), argument)) return tensor.contiguous();
  return absl::InvalidArgumentError(absl::StrCat(nameOf(op_.operator_name()), ": argument '",
                                                 op_.schema().arguments()[argument].name(),
                                                 "' is written to, and its elements do not lie one after the other: "
                                                 "give a contiguous tensor"));
}

absl::Status PreparedCall::run(absl::Span<const at::Tensor> tensors, std::vector<at::Tensor>* outputs) const {
  try {
    torch::jit::Stack stack = constants_;
    for (const Hole& hole : holes_) {
      if (!hole.isList && memoryOrder_ == MemoryOrder::kAny) {
        stack[hole.argument] = tensors[hole.index];
      } else if (!hole.isList) {
        absl::StatusOr<at::Tensor> tensor = inOrder(tensors[hole.index], hole.argument);
        if (!tensor.ok()) return tensor.status();
        stack[hole.argument] = *std::move(tensor);
      } else if (hole.optionalElements) {
        c10::List<std::optional<at::Tensor>> list;
        for (const auto& index : hole.list.indices) {
          list.push_back(index ? std::optional<at::Tensor>(tensors[*index]) : std::nullopt);
        }
        stack[hole.argument] = std::move(list);
      } else {
        c10::List<at::Tensor> list;
        for (const auto& index : hole.list.indices) {
          absl::StatusOr<at::Tensor> tensor = index ? inOrder(tensors[*index], hole.argument) : at::Tensor();
          if (!tensor.ok()) return tensor.status();
          list.push_back(*std::move(tensor));
        }
        stack[hole.argument] = std::move(list);
      }
    }
    for (const ArgumentCheck& check : {std::cref(shapeCheck_), std::cref(indexCheck_)}) {
      if (check == nullptr) continue;
      if (absl::Status status = check(CallArguments(op_.schema(), stack)); !status.ok()) return status;
    }
    op_.callBoxed(&stack);
    const std::size_t first = outputs->size();
    for (c10::IValue& value : stack) {
      if (absl::Status status = collect(value, outputs); !status.ok()) return status;
    }
    for (std::size_t i = first; uninitialized_ && i < outputs->size(); ++i) (*outputs)[i].zero_();
    return absl::OkStatus();
  } catch (const std::exception& error) {
    return fromException(error);
  }
}

}  // namespace dtorch
