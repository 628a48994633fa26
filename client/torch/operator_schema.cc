#include "client/torch/operator_schema.h"

#include <algorithm>
#include <mutex>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace dtorch {
namespace {

using Kind = OperatorSchema::Kind;

Kind kindOf(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::OptionalType:
      return kindOf(*type.castRaw<c10::OptionalType>()->getElementType());
    case c10::TypeKind::TensorType:
      return Kind::kTensor;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
    case c10::TypeKind::FloatType:
    case c10::TypeKind::BoolType:
    case c10::TypeKind::NumberType:
      return Kind::kNumber;
    case c10::TypeKind::StringType:
      return Kind::kString;
    case c10::TypeKind::ScalarTypeType:
      return Kind::kDType;
    case c10::TypeKind::LayoutType:
      return Kind::kLayout;
    case c10::TypeKind::MemoryFormatType:
      return Kind::kMemoryFormat;
    case c10::TypeKind::DeviceObjType:
      return Kind::kDevice;
    case c10::TypeKind::GeneratorType:
      return Kind::kGenerator;
    case c10::TypeKind::ListType:
      switch (kindOf(*type.castRaw<c10::ListType>()->getElementType())) {
        case Kind::kTensor:
          return Kind::kTensorList;
        case Kind::kNumber:
          switch (type.castRaw<c10::ListType>()->getElementType()->kind()) {
            case c10::TypeKind::FloatType:
              return Kind::kFloatList;
            case c10::TypeKind::BoolType:
              return Kind::kBoolList;
            case c10::TypeKind::NumberType:
              return Kind::kNumberList;
            default:
              return Kind::kIntList;
          }
        default:
          return Kind::kOther;
      }
    default:
      return Kind::kOther;
  }
}

}  // namespace

OperatorSchema::OperatorSchema(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  name = schema.overload_name().empty() ? schema.name() : absl::StrCat(schema.name(), ".", schema.overload_name());
  dependsOnValues = op.hasTag(at::Tag::dynamic_output_shape) || op.hasTag(at::Tag::data_dependent_output);
  isPlain = op.hasTag(at::Tag::pointwise);
  for (const c10::Argument& argument : schema.arguments()) {
    Argument& own = arguments.emplace_back();
    own.name = argument.name();
    // Of a ScalarType argument the plain type is int.
    own.kind = kindOf(*argument.real_type());
    own.keywordOnly = argument.kwarg_only();
    own.written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    own.hasDefault = argument.default_value().has_value();
    if (own.hasDefault) own.ifLeftOut = *argument.default_value();
  }
  for (const c10::Argument& result : schema.returns()) {
    Return& own = returns.emplace_back();
    const Kind kind = kindOf(*result.type());
    own.isTensor = kind == Kind::kTensor || kind == Kind::kTensorList;
    own.isList = kind == Kind::kTensorList;
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) {
      isPlain = true;
      const auto viewed = std::find_if(arguments.begin(), arguments.end(),
                                       [](const Argument& argument) { return argument.kind == Kind::kTensor; });
      if (viewed != arguments.end()) own.views = static_cast<int>(viewed - arguments.begin());
    }
    if (result.alias_info() == nullptr || !result.alias_info()->isWrite()) continue;
    for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
      const auto* alias = schema.arguments()[i].alias_info();
      if (alias != nullptr && alias->isWrite() && alias->beforeSets() == result.alias_info()->beforeSets()) {
        own.writes = static_cast<int>(i);
      }
    }
  }
}

const OperatorSchema& schemaOf(const c10::OperatorHandle& op) {
  static auto* mutex = new std::mutex;
  static auto* known =
      new absl::flat_hash_map<c10::OperatorHandle, std::unique_ptr<OperatorSchema>, std::hash<c10::OperatorHandle>>;
  const std::lock_guard lock(*mutex);
  std::unique_ptr<OperatorSchema>& schema = (*known)[op];
  if (schema == nullptr) schema = std::make_unique<OperatorSchema>(op);
  return *schema;
}

}  // namespace dtorch
