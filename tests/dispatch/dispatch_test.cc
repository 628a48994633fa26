#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "dispatch/binding.h"
#include "dispatch/dtype.h"
#include "dispatch/meta.h"
#include "dispatch/operator_policy.h"
#include "dispatch/prepared_call.h"
#include "tests/catch.h"

namespace dtorch {
namespace {

using Ints = std::vector<std::int64_t>;
const c10::Device kCpu(c10::kCPU);

absl::StatusOr<std::vector<at::Tensor>> callOperator(const std::string& name, const Arguments& arguments,
                                                     const std::vector<at::Tensor>& tensors) {
  absl::StatusOr<c10::OperatorHandle> op = findOperator(name);
  if (!op.ok()) return op.status();
  absl::StatusOr<std::vector<Value>> bound = bindArguments(op->schema(), arguments);
  if (!bound.ok()) return bound.status();
  absl::StatusOr<PreparedCall> call = PreparedCall::create(*op, *bound, kCpu);
  if (!call.ok()) return call.status();
  std::vector<at::Tensor> outputs;
  const absl::Status status = call->run(tensors, &outputs);
  if (!status.ok()) return status;
  return outputs;
}

std::vector<TensorMeta> metaOf(const std::string& name, const Arguments& arguments,
                               const std::vector<TensorMeta>& inputs) {
  const c10::OperatorHandle op = *findOperator(name);
  std::vector<const TensorMeta*> pointers;
  for (const TensorMeta& input : inputs) pointers.push_back(&input);
  const std::vector<OutputMeta> outputs = **inferMeta(op, *bindArguments(op.schema(), arguments), pointers);
  std::vector<TensorMeta> metas;
  for (const OutputMeta& output : outputs) metas.push_back(output.meta);
  return metas;
}

TensorMeta floats(Ints shape) { return *makeMeta(DType::kFloat32, std::move(shape)); }

bool mentions(const absl::Status& status, const std::string& text) {
  return std::string(status.message()).find(text) != std::string::npos;
}

TEST_CASE("an operator is found by schema name; a wrong name lists the overloads") {
  CHECK(findOperator("aten::mm").ok());
  CHECK(findOperator("aten::add.Tensor").ok());
  CHECK(mentions(findOperator("aten::add").status(), "aten::add.Tensor"));
  CHECK(absl::IsNotFound(findOperator("aten::none_such").status()));
  CHECK(absl::IsNotFound(findOperator("").status()));
}

TEST_CASE("arguments take their places, names and defaults from the schema") {
  const c10::FunctionSchema& schema = findOperator("aten::sum.dim_IntList")->schema();
  const absl::StatusOr<std::vector<Value>> bound =
      bindArguments(schema, {{TensorArg{0}, Ints{1}}, {{"dtype", DType::kFloat64}}});
  REQUIRE(bound.ok());
  CHECK((*bound == std::vector<Value>{TensorArg{0}, Ints{1}, false, DType::kFloat64}));
  CHECK(mentions(bindArguments(schema, {{TensorArg{0}}, {}}).status(), "'dim' is missing"));
  CHECK(mentions(bindArguments(schema, {{TensorArg{0}, Ints{1}, true, DType::kFloat64}, {}}).status(), "positional"));
  CHECK(mentions(bindArguments(schema, {{TensorArg{0}, Ints{1}}, {{"nonsense", 1}}}).status(), "'nonsense'"));
  CHECK(mentions(bindArguments(schema, {{TensorArg{0}, Ints{1}}, {{"dim", Ints{0}}}}).status(), "twice"));
}

TEST_CASE("scalars keep kind and bits; what does not fit names the argument") {
  const at::Tensor ints = at::zeros({1}, at::kLong);
  const auto sum = callOperator("aten::add.Scalar", {{TensorArg{0}, std::int64_t{9007199254740993}}, {}}, {ints});
  REQUIRE(sum.ok());
  CHECK((*sum)[0].item<std::int64_t>() == 9007199254740993);
  const auto least =
      callOperator("aten::add.Scalar", {{TensorArg{0}, std::numeric_limits<std::int64_t>::min()}, {}}, {ints});
  CHECK((*least)[0].item<std::int64_t>() == std::numeric_limits<std::int64_t>::min());
  const auto promoted = callOperator("aten::mul.Tensor", {{TensorArg{0}, 0.1}, {}}, {at::full({1}, 77, at::kInt)});
  CHECK((*promoted)[0].scalar_type() == at::kFloat);
  CHECK(at::allclose((*promoted)[0], at::full({1}, 7.7)));
  const auto zero = callOperator("aten::mul.Scalar", {{TensorArg{0}, -0.0}, {}}, {at::ones({1}, at::kDouble)});
  CHECK(std::signbit((*zero)[0].item<double>()));
  CHECK(mentions(callOperator("aten::mm", {{TensorArg{0}, "text"}, {}}, {ints}).status(), "'mat2'"));
  CHECK(mentions(callOperator("aten::sum.dim_IntList", {{TensorArg{0}, "text"}, {}}, {ints}).status(), "'dim'"));
}

TEST_CASE("lists: of tensors, with None, and one int for int[2]") {
  const at::Tensor a = at::ones({2});
  const auto cat = callOperator("aten::cat", {{std::vector<Value>{TensorArg{0}, TensorArg{1}}}, {}}, {a, a});
  REQUIRE(cat.ok());
  CHECK(at::equal((*cat)[0], at::ones({4})));
  const auto pool = callOperator("aten::max_pool2d", {{TensorArg{0}, 2}, {}}, {at::rand({1, 1, 4, 4})});
  REQUIRE(pool.ok());
  CHECK((*pool)[0].sizes() == at::IntArrayRef({1, 1, 2, 2}));
  const at::Tensor index = at::arange(2);
  const auto indexed = callOperator("aten::index.Tensor", {{TensorArg{0}, TensorListArg{{std::nullopt, 1u}}}, {}},
                                    {at::rand({3, 4}), index});
  REQUIRE(indexed.ok());
  CHECK((*indexed)[0].sizes() == at::IntArrayRef({3, 2}));
}

TEST_CASE("what LibTorch throws becomes a status") {
  CHECK(absl::IsInvalidArgument(
      callOperator("aten::mm", {{TensorArg{0}, TensorArg{1}}, {}}, {at::ones({2, 2}), at::ones({3, 3})}).status()));
  CHECK(absl::IsResourceExhausted(callOperator("aten::zeros", {{Ints{std::int64_t{1} << 50}}, {}}, {}).status()));
}

TEST_CASE("metadata without data: Meta kernels, pointwise operators without one, the table") {
  CHECK(metaOf("aten::mm", {{TensorArg{0}, TensorArg{1}}, {}}, {floats({5, 4}), floats({4, 3})})[0] == floats({5, 3}));
  CHECK(metaOf("aten::relu", {{TensorArg{0}}, {}}, {floats({5, 4})})[0] == floats({5, 4}));
  CHECK(metaOf("aten::abs", {{TensorArg{0}}, {}}, {*makeMeta(DType::kComplex64, {3})})[0] == floats({3}));
  CHECK(metaOf("aten::max", {{TensorArg{0}}, {}}, {floats({5, 4})})[0] == floats({}));
  CHECK(metaOf("aten::add.Tensor", {{TensorArg{0}, TensorArg{1}}, {}},
               {floats({5, 1}), *makeMeta(DType::kInt64, {3})})[0] == floats({5, 3}));
  // No Meta kernel, and no other rule: run on zeros; or, of a large input, from the table.
  CHECK(metaOf("aten::var", {{TensorArg{0}}, {}}, {floats({5, 4})})[0] == floats({}));
  CHECK(metaOf("aten::roll", {{TensorArg{0}, Ints{1}}, {}}, {floats({8 << 20})})[0] == floats({8 << 20}));
  // Only a run tells.
  const TensorMeta five = floats({5});
  const c10::OperatorHandle nonzero = *findOperator("aten::nonzero");
  CHECK_FALSE((*inferMeta(nonzero, {Value(TensorArg{0})}, {&five})).has_value());
  // What goes by values is known by its run alone, tagged or not.
  const c10::OperatorHandle unique = *findOperator("aten::_unique");
  const TensorMeta numbers = *makeMeta(DType::kInt64, {5});
  CHECK_FALSE((*inferMeta(unique, {Value(TensorArg{0}), Value(false), Value(false)}, {&numbers})).has_value());
  const c10::OperatorHandle repeat = *findOperator("aten::repeat_interleave.self_Tensor");
  CHECK_FALSE((*inferMeta(repeat, {Value(TensorArg{0}), Value(TensorArg{1}), Value(), Value()}, {&five, &numbers}))
                  .has_value());
  TensorMeta transposed = floats({4, 5});
  transposed.strides = {1, 4};
  CHECK(metaOf("aten::t", {{TensorArg{0}}, {}}, {floats({5, 4})})[0] == transposed);
  CHECK(metaOf("aten::abs", {{TensorArg{0}}, {}}, {transposed})[0] == transposed);
}

TEST_CASE("operators that read files or trust their indices are denied") {
  const OperatorPolicy policy;
  CHECK(absl::IsPermissionDenied(policy.check("aten::from_file")));
  CHECK(absl::IsPermissionDenied(policy.check("aten::_efficientzerotensor")));
  CHECK(absl::IsPermissionDenied(policy.check("aten::_sparse_coo_tensor_unsafe")));
  CHECK(absl::IsPermissionDenied(policy.check("aten::_reshape_alias_copy")));
  CHECK(absl::IsPermissionDenied(policy.check("aten::_nested_view_from_buffer_copy.out")));
  CHECK(absl::IsPermissionDenied(policy.check("inductor::_alloc_from_pool")));
  CHECK(policy.check("aten::mm").ok());
}

TEST_CASE("the configuration denies and allows operators") {
  const OperatorPolicy policy({"aten::_nested_*"}, {"aten::mm", "dtorch::manual*"}, {"mylib::scale_rows"});
  CHECK(policy.check("aten::_nested_view_from_buffer").ok());
  CHECK(policy.check("mylib::scale_rows.out").ok());
  CHECK(absl::IsPermissionDenied(policy.check("mylib::other")));
  CHECK(absl::IsPermissionDenied(policy.check("aten::mm.out")));
  CHECK(absl::IsPermissionDenied(policy.check("aten::mm_")));
  CHECK(absl::IsPermissionDenied(policy.check("aten::_foreach_mm_.List")));
  CHECK(policy.check("aten::bmm").ok());
  CHECK(absl::IsPermissionDenied(policy.check("dtorch::manual_seed")));
  CHECK(absl::IsPermissionDenied(policy.check("aten::from_file")));
}

TEST_CASE("every dtype of the wire is one of LibTorch's, of the same size") {
  for (int i = 1; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    CHECK(*fromTorch(toTorch(dtype)) == dtype);
    CHECK(static_cast<int>(c10::elementSize(toTorch(dtype))) == elementSize(dtype));
  }
}

}  // namespace
}  // namespace dtorch
