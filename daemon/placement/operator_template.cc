#include "daemon/placement/operator_template.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dispatch/binding.h"
#include "dispatch/prepared_call.h"
#include "dispatch/written_arguments.h"

namespace dtorch {
namespace {

// The positions among the inputs that `value` refers to, in order of appearance.
void appendTensors(const Value& value, std::vector<std::uint32_t>* indices) {
  if (const auto* tensor = value.as<TensorArg>()) indices->push_back(tensor->index);
  if (const auto* list = value.as<TensorListArg>()) {
    for (const auto& index : list->indices) {
      if (index) indices->push_back(*index);
    }
  }
  if (const auto* values = value.as<std::vector<Value>>()) {
    for (const Value& element : *values) appendTensors(element, indices);
  }
}

bool isPlannerOnly(const Value& value) {
  const auto* values = value.as<std::vector<Value>>();
  return value.as<LocalSizes>() != nullptr || value.as<LocalRange>() != nullptr ||
         (values != nullptr && std::any_of(values->begin(), values->end(), isPlannerOnly));
}

// How many tensors it returns, numbers being tensors too; -1: the call must say (Tensor[]).
absl::StatusOr<int> countOutputs(const c10::FunctionSchema& schema) {
  int count = 0;
  for (const c10::Argument& result : schema.returns()) {
    const auto kind = result.type()->kind();
    const auto* list = result.type()->castRaw<c10::ListType>();
    if (kind == c10::TypeKind::TensorType || kind == c10::TypeKind::IntType || kind == c10::TypeKind::SymIntType ||
        kind == c10::TypeKind::FloatType || kind == c10::TypeKind::BoolType || kind == c10::TypeKind::NumberType ||
        (list != nullptr && list->getElementType()->kind() == c10::TypeKind::IntType)) {
      ++count;
    } else if (list != nullptr && list->getElementType()->kind() == c10::TypeKind::TensorType) {
      return -1;
    } else {
      return absl::UnimplementedError(absl::StrCat("it returns a ", result.type()->annotation_str(), ", not a tensor"));
    }
  }
  return count;
}

}  // namespace

absl::StatusOr<OperatorTemplate> OperatorTemplate::create(const OperatorPolicy& policy, const std::string& name,
                                                          const Arguments& arguments, std::uint32_t outputs,
                                                          const PlacedMesh* mesh, Placements placements) {
  if (absl::Status allowed = policy.check(name); !allowed.ok()) return allowed;
  absl::StatusOr<c10::OperatorHandle> op = findOperator(name);
  if (!op.ok()) return op.status();
  if (op->hasTag(at::Tag::inplace_view)) {
    return absl::UnimplementedError("it changes the shape of its tensor in place; use the form that returns a view");
  }
  const c10::FunctionSchema& schema = op->schema();
  absl::StatusOr<std::vector<Value>> bound = bindArguments(schema, arguments);
  if (!bound.ok()) return bound.status();

  OperatorTemplate result(*op);
  result.name = name;
  result.arguments = *std::move(bound);
  result.outputs = outputs;
  result.mesh = mesh;
  result.placements = std::move(placements);

  std::vector<std::uint32_t> tensors;
  for (const Value& value : result.arguments) {
    if (isPlannerOnly(value)) return absl::InvalidArgumentError("local sizes are no argument of a client's");
    appendTensors(value, &tensors);
  }
  result.inputs = static_cast<std::uint32_t>(tensors.size());
  std::vector<std::uint32_t> sorted = tensors;
  std::sort(sorted.begin(), sorted.end());
  for (std::uint32_t i = 0; i < sorted.size(); ++i) {
    if (sorted[i] != i) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor arguments must name inputs 0 to ", sorted.size() - 1, " once each"));
    }
  }

  absl::StatusOr<int> count = countOutputs(schema);
  if (!count.ok()) return count.status();
  if (*count >= 0 && static_cast<std::uint32_t>(*count) != outputs) {
    result.refusal =
        absl::InvalidArgumentError(absl::StrCat("it returns ", *count, " tensors, the call expects ", outputs));
  }

  for (std::size_t a = 0; a < schema.arguments().size(); ++a) {
    if (!isWritten(schema, a, result.arguments)) {
      const auto* viewed = result.arguments[a].as<TensorArg>();
      if (schema.arguments()[a].alias_info() != nullptr && viewed != nullptr) result.viewed = viewed->index;
      continue;
    }
    std::vector<std::uint32_t> inputs;
    appendTensors(result.arguments[a], &inputs);
    result.written.insert(result.written.end(), inputs.begin(), inputs.end());
    const auto* alias = schema.arguments()[a].alias_info();
    if (alias == nullptr || result.arguments[a].as<TensorArg>() == nullptr) continue;
    for (std::size_t r = 0; r < schema.returns().size(); ++r) {
      const auto* other = schema.returns()[r].alias_info();
      if (other == nullptr || other->beforeSets() != alias->beforeSets()) continue;
      result.returned.emplace_back(static_cast<std::uint32_t>(r), inputs[0]);
    }
  }
  return result;
}

}  // namespace dtorch
