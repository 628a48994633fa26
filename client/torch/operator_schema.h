#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <vector>

namespace dtorch {

/// What a call of an operator needs to know of its schema, looked up once.
struct OperatorSchema {
  enum class Kind : std::uint8_t {
    kTensor,
    kTensorList,
    kNumber,  // int, float, bool, Scalar: as they come
    kString,
    kDType,
    kLayout,
    kMemoryFormat,
    kDevice,
    kIntList,
    kFloatList,
    kBoolList,
    kNumberList,
    kGenerator,
    kOther,
  };
  struct Argument {
    std::string name;
    Kind kind = Kind::kOther;
    bool keywordOnly = false;
    bool written = false;
    c10::IValue ifLeftOut;  // its default
    bool hasDefault = false;
  };
  struct Return {
    bool isTensor = false;
    bool isList = false;
    int writes = -1;  // the argument that it is: of in-place operators and out=
    int views = -1;   // the argument that it is a view of, or its elements are
  };

  explicit OperatorSchema(const c10::OperatorHandle& op);

  std::string name;  // "aten::add.Tensor"
  std::vector<Argument> arguments;
  std::vector<Return> returns;
  bool isPlain = false;          // pointwise, or a view
  bool dependsOnValues = false;  // the metadata of what it returns, or a number that it returns
};

/// Of an operator, made at its first call. Thread: safe.
const OperatorSchema& schemaOf(const c10::OperatorHandle& op);

}  // namespace dtorch
