#include "dispatch/meta.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "dispatch/dtype.h"

namespace dtorch {
namespace {

// LibTorch 2.11 has no C++ Meta kernel for these; each returns one tensor, of its first input's dtype.
enum class Shape : std::uint8_t { kOfFirstInput, kScalar };
struct Row {
  absl::string_view op;
  Shape shape;
};
constexpr std::array<Row, 8> kWithoutMetaKernel = {{
    {"aten::flip", Shape::kOfFirstInput},
    {"aten::roll", Shape::kOfFirstInput},
    {"aten::fill_.Scalar", Shape::kOfFirstInput},
    {"aten::max", Shape::kScalar},
    {"aten::min", Shape::kScalar},
    {"aten::median", Shape::kScalar},
    {"aten::dot", Shape::kScalar},
    {"aten::vdot", Shape::kScalar},
}};

absl::StatusOr<TensorMeta> metaOf(const at::Tensor& tensor) {
  if (!tensor.defined()) return absl::UnimplementedError("one of its results is no tensor");
  if (tensor.layout() != c10::kStrided) return absl::UnimplementedError("its result is not a strided tensor");
  absl::StatusOr<DType> dtype = fromTorch(tensor.scalar_type());
  if (!dtype.ok()) return dtype.status();
  absl::StatusOr<TensorMeta> meta = makeMeta(*dtype, tensor.sizes().vec());
  if (meta.ok()) meta->strides = tensor.strides().vec();
  return meta;
}

int aliasOf(const at::Tensor& output, const std::vector<at::Tensor>& inputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (output.is_alias_of(inputs[i])) return static_cast<int>(i);
  }
  return -1;
}

at::Tensor emptyOn(c10::Device device, const TensorMeta& meta) {
  return at::empty_strided(meta.shape, meta.strides, c10::TensorOptions(device).dtype(toTorch(meta.dtype)));
}

// Shapes broadcast; the kernel itself, run on tensors without elements, tells the dtype and refuses what it refuses.
absl::StatusOr<std::vector<OutputMeta>> inferPointwise(const c10::OperatorHandle& op,
                                                       const std::vector<Value>& arguments,
                                                       absl::Span<const TensorMeta* const> inputs) {
  absl::StatusOr<PreparedCall> call = PreparedCall::create(op, arguments, c10::Device(c10::kCPU));
  if (!call.ok()) return call.status();
  std::vector<at::Tensor> empties;
  std::vector<at::Tensor> outputs;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  try {
    for (const TensorMeta* input : inputs) {
      shape = at::infer_size(shape, input->shape);
      empties.push_back(
          at::empty(std::vector<std::int64_t>(input->shape.size(), 0), at::TensorOptions(toTorch(input->dtype))));
    }
    // As TensorIterator does: the first input of full shape sets the order of the dimensions.
    strides = contiguousStrides(shape);
    for (const TensorMeta* input : inputs) {
      if (input->shape != shape) continue;
      strides = at::empty_like(emptyOn(c10::Device(c10::kMeta), *input)).strides().vec();
      break;
    }
  } catch (const std::exception& error) {
    return fromException(error);
  }
  if (absl::Status status = call->run(empties, &outputs); !status.ok()) return status;
  std::vector<OutputMeta> metas;
  for (const at::Tensor& output : outputs) {
    absl::StatusOr<DType> dtype = fromTorch(output.scalar_type());
    if (!dtype.ok()) return dtype.status();
    absl::StatusOr<TensorMeta> meta = makeMeta(*dtype, shape);
    if (!meta.ok()) return meta.status();
    meta->strides = strides;
    metas.push_back({*std::move(meta), aliasOf(output, empties)});
  }
  return metas;
}

}  // namespace

absl::StatusOr<std::vector<OutputMeta>> inferMeta(const c10::OperatorHandle& op, const std::vector<Value>& arguments,
                                                  absl::Span<const TensorMeta* const> inputs) {
  const std::string name = nameOf(op.operator_name());
  const auto* row =
      std::find_if(kWithoutMetaKernel.begin(), kWithoutMetaKernel.end(), [&](const Row& r) { return r.op == name; });
  if (row != kWithoutMetaKernel.end() && !inputs.empty()) {
    const bool inPlace = name.substr(0, name.find('.')).back() == '_';
    return std::vector<OutputMeta>{
        {row->shape == Shape::kScalar ? TensorMeta{inputs[0]->dtype, {}, {}} : *inputs[0], inPlace ? 0 : -1}};
  }
  absl::StatusOr<PreparedCall> call = PreparedCall::create(op, arguments, c10::Device(c10::kMeta));
  if (!call.ok()) return call.status();
  std::vector<at::Tensor> tensors;
  tensors.reserve(inputs.size());
  try {
    for (const TensorMeta* input : inputs) {
      tensors.push_back(emptyOn(c10::Device(c10::kMeta), *input));
    }
  } catch (const std::exception& error) {
    return fromException(error);
  }
  std::vector<at::Tensor> outputs;
  if (absl::Status status = call->run(tensors, &outputs); !status.ok()) {
    if (!absl::IsUnimplemented(status)) return status;
    if (op.hasTag(at::Tag::pointwise)) return inferPointwise(op, arguments, inputs);
    return absl::UnimplementedError("the operator has no Meta kernel that tells its result's shape");
  }
  std::vector<OutputMeta> metas;
  try {
    for (const at::Tensor& output : outputs) {
      absl::StatusOr<TensorMeta> meta = metaOf(output);
      if (!meta.ok()) return meta.status();
      metas.push_back({*std::move(meta), aliasOf(output, tensors)});
    }
  } catch (const std::exception& error) {  // sizes or strides that are no numbers: LibTorch made them symbols
    return fromException(error);
  }
  return metas;
}

}  // namespace dtorch
