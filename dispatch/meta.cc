#include "dispatch/meta.h"

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

// LibTorch 2.11 has no C++ Meta kernel for these; each returns one tensor like its first input.
constexpr std::array<absl::string_view, 5> kLikeFirstInput = {"aten::relu", "aten::relu_", "aten::flip", "aten::roll",
                                                              "aten::fill_.Scalar"};

absl::StatusOr<TensorMeta> metaOf(const at::Tensor& tensor) {
  if (!tensor.defined()) return absl::UnimplementedError("one of its results is no tensor");
  if (tensor.layout() != c10::kStrided) return absl::UnimplementedError("its result is not a strided tensor");
  absl::StatusOr<DType> dtype = fromTorch(tensor.scalar_type());
  if (!dtype.ok()) return dtype.status();
  absl::StatusOr<TensorMeta> meta = makeMeta(*dtype, tensor.sizes().vec());
  if (meta.ok()) meta->strides = tensor.strides().vec();
  return meta;
}

}  // namespace

absl::StatusOr<std::vector<TensorMeta>> inferMeta(const c10::OperatorHandle& op, const std::vector<Value>& arguments,
                                                  absl::Span<const TensorMeta* const> inputs) {
  const std::string name = nameOf(op.operator_name());
  if (!inputs.empty() && std::find(kLikeFirstInput.begin(), kLikeFirstInput.end(), name) != kLikeFirstInput.end()) {
    return std::vector<TensorMeta>{*inputs[0]};
  }
  absl::StatusOr<PreparedCall> call = PreparedCall::create(op, arguments, c10::Device(c10::kMeta));
  if (!call.ok()) return call.status();
  std::vector<at::Tensor> tensors;
  tensors.reserve(inputs.size());
  try {
    for (const TensorMeta* input : inputs) {
      tensors.push_back(at::empty_strided(input->shape, input->strides,
                                          c10::TensorOptions(c10::kMeta).dtype(toTorch(input->dtype))));
    }
  } catch (const std::exception& error) {
    return fromException(error);
  }
  std::vector<at::Tensor> outputs;
  if (absl::Status status = call->run(tensors, &outputs); !status.ok()) {
    if (!absl::IsUnimplemented(status)) return status;
    return absl::UnimplementedError("the operator has no Meta kernel that tells its result's shape");
  }
  std::vector<TensorMeta> metas;
  for (const at::Tensor& output : outputs) {
    absl::StatusOr<TensorMeta> meta = metaOf(output);
    if (!meta.ok()) return meta.status();
    metas.push_back(*std::move(meta));
  }
  return metas;
}

}  // namespace dtorch
