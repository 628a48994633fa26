#include "dispatch/meta.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
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
constexpr std::array<Row, 7> kWithoutMetaKernel = {{
    {"aten::flip", Shape::kOfFirstInput},
    {"aten::roll", Shape::kOfFirstInput},
    {"aten::max", Shape::kScalar},
    {"aten::min", Shape::kScalar},
    {"aten::median", Shape::kScalar},
    {"aten::dot", Shape::kScalar},
    {"aten::vdot", Shape::kScalar},
}};

// Meta kernels of LibTorch 2.11 that tell another shape than the kernel gives, or look at values.
constexpr std::array<absl::string_view, 5> kWrongMetaKernel = {
    "aten::addbmm_", "aten::isin.Scalar_Tensor", "aten::isin.Scalar_Tensor_out", "aten::randint_like.Tensor",
    "aten::randint_like.Tensor_out"};

// Those that tell another dtype than the kernel gives, where the first input has no elements.
constexpr std::array<absl::string_view, 2> kWrongForNothing = {"aten::native_layer_norm",
                                                               "aten::native_layer_norm.out"};

// Those whose results' shapes go by values only where an index is a mask.
constexpr std::array<absl::string_view, 3> kDynamicByMask = {"aten::index.Tensor", "aten::index.Tensor_out",
                                                             "aten::_unsafe_index.Tensor"};

// What kernels say that find out by themselves that they are not for the Meta device.
constexpr std::array<absl::string_view, 4> kNoMetaKernel = {"DispatchStub: unsupported device", "got: meta",
                                                            "got meta instead", "with Meta Backend"};

// Inputs of more bytes are not made only to see what comes out.
constexpr std::int64_t kProbedBytes = 16 << 20;

// Which of some tensors another one shares its memory with. Lists have thousands of both.
class Memories {
 public:
  explicit Memories(const std::vector<at::Tensor>& tensors) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].has_storage()) of_.emplace(tensors[i].storage().unsafeGetStorageImpl(), static_cast<int>(i));
    }
  }
  /// The first one; -1: none.
  int of(const at::Tensor& tensor) const {
    if (!tensor.has_storage()) return -1;
    const auto it = of_.find(tensor.storage().unsafeGetStorageImpl());
    return it == of_.end() ? -1 : it->second;
  }

 private:
  absl::flat_hash_map<const c10::StorageImpl*, int> of_;
};

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
  const Memories memories(empties);
  for (const at::Tensor& output : outputs) {
    absl::StatusOr<DType> dtype = fromTorch(output.scalar_type());
    if (!dtype.ok()) return dtype.status();
    absl::StatusOr<TensorMeta> meta = makeMeta(*dtype, shape);
    if (!meta.ok()) return meta.status();
    meta->strides = strides;
    metas.push_back({*std::move(meta), memories.of(output)});
  }
  return metas;
}

absl::StatusOr<std::vector<OutputMeta>> metasOf(const std::vector<at::Tensor>& outputs,
                                                const std::vector<at::Tensor>& inputs) {
  std::vector<OutputMeta> metas;
  try {
    const Memories memories(inputs);
    for (const at::Tensor& output : outputs) {
      absl::StatusOr<TensorMeta> meta = tensorMeta(output);
      if (!meta.ok()) return meta.status();
      metas.push_back({*std::move(meta), memories.of(output)});
    }
  } catch (const std::exception& error) {  // sizes or strides that are no numbers: LibTorch made them symbols
    return fromException(error);
  }
  return metas;
}

// Along its longest dimension that has memory of its own; what is expanded lies in one place.
void fillWithOnesAndTwos(at::Tensor& tensor) {
  tensor.fill_(1);
  std::int64_t longest = -1;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.stride(d) != 0 && (longest < 0 || tensor.size(d) > tensor.size(longest))) longest = d;
  }
  if (longest >= 0 && tensor.numel() > 1) tensor.slice(longest, 1, std::nullopt, 2).fill_(2);
}

enum class Fill : std::uint8_t { kZeros, kOnesAndTwos };

// Runs the operator on `device`, on inputs without content (Meta) or of some values.
absl::StatusOr<std::vector<OutputMeta>> runOn(c10::Device device, const c10::OperatorHandle& op,
                                              const std::vector<Value>& arguments,
                                              absl::Span<const TensorMeta* const> inputs, Fill fill = Fill::kZeros) {
  absl::StatusOr<PreparedCall> call = PreparedCall::create(op, arguments, device);
  if (!call.ok()) return call.status();
  std::vector<at::Tensor> tensors;
  std::vector<at::Tensor> outputs;
  try {
    for (const TensorMeta* input : inputs) {
      at::Tensor& tensor = tensors.emplace_back(emptyOn(device, *input).zero_());
      if (fill == Fill::kOnesAndTwos) fillWithOnesAndTwos(tensor);
    }
  } catch (const std::exception& error) {
    return fromException(error);
  }
  if (absl::Status status = call->run(tensors, &outputs); !status.ok()) return status;
  return metasOf(outputs, tensors);
}

// Whether an input but the first is a mask.
bool hasMask(absl::Span<const TensorMeta* const> inputs) {
  return std::any_of(inputs.begin() + (inputs.empty() ? 0 : 1), inputs.end(), [](const TensorMeta* input) {
    return input->dtype == DType::kBool || input->dtype == DType::kUInt8;
  });
}

std::int64_t bytesOf(absl::Span<const TensorMeta* const> inputs) {
  std::int64_t bytes = 0;
  for (const TensorMeta* input : inputs) {
    if (__builtin_add_overflow(bytes, input->bytes(), &bytes)) return std::numeric_limits<std::int64_t>::max();
  }
  return bytes;
}

}  // namespace

absl::StatusOr<TensorMeta> tensorMeta(const at::Tensor& tensor) {
  if (!tensor.defined()) return absl::UnimplementedError("one of its results is no tensor");
  if (tensor.layout() != c10::kStrided) return absl::UnimplementedError("its result is not a strided tensor");
  absl::StatusOr<DType> dtype = fromTorch(tensor.scalar_type());
  if (!dtype.ok()) return dtype.status();
  absl::StatusOr<TensorMeta> meta = makeMeta(*dtype, tensor.sizes().vec());
  if (meta.ok()) meta->strides = tensor.strides().vec();
  return meta;
}

absl::StatusOr<OutputMetas> inferMeta(const c10::OperatorHandle& op, const std::vector<Value>& arguments,
                                      absl::Span<const TensorMeta* const> inputs) {
  const auto known = [](absl::StatusOr<std::vector<OutputMeta>> metas) -> absl::StatusOr<OutputMetas> {
    if (!metas.ok()) return metas.status();
    return OutputMetas(*std::move(metas));
  };
  const std::string name = nameOf(op.operator_name());
  const auto isIn = [&](absl::Span<const absl::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (op.hasTag(at::Tag::dynamic_output_shape) && !(isIn(kDynamicByMask) && !hasMask(inputs))) return OutputMetas();
  const bool wrong = isIn(kWrongMetaKernel) || (!inputs.empty() && inputs[0]->numel() == 0 && isIn(kWrongForNothing));
  absl::StatusOr<std::vector<OutputMeta>> metas = wrong ? absl::UnimplementedError("its Meta kernel is wrong")
                                                        : runOn(c10::Device(c10::kMeta), op, arguments, inputs);
  const bool hasKernel = !absl::IsUnimplemented(metas.status()) &&
                         std::none_of(kNoMetaKernel.begin(), kNoMetaKernel.end(), [&](absl::string_view text) {
                           return absl::StrContains(metas.status().message(), text);
                         });
  if (metas.ok() || hasKernel) return known(std::move(metas));
  if (op.hasTag(at::Tag::data_dependent_output)) return OutputMetas();
  if (op.hasTag(at::Tag::pointwise)) {
    metas = inferPointwise(op, arguments, inputs);
    if (metas.ok()) return known(std::move(metas));
  }
  if (bytesOf(inputs) <= kProbedBytes) {
    metas = runOn(c10::Device(c10::kCPU), op, arguments, inputs);
    // What it does not like about zeros it may like about the real values.
    if (metas.ok()) {
      const auto others = runOn(c10::Device(c10::kCPU), op, arguments, inputs, Fill::kOnesAndTwos);
      if (others.ok() && *others != *metas) return OutputMetas();  // it goes by values
      return known(std::move(metas));
    }
  }
  const auto* row =
      std::find_if(kWithoutMetaKernel.begin(), kWithoutMetaKernel.end(), [&](const Row& r) { return r.op == name; });
  if (row == kWithoutMetaKernel.end() || inputs.empty()) return OutputMetas();
  TensorMeta meta =
      *makeMeta(inputs[0]->dtype, row->shape == Shape::kScalar ? std::vector<std::int64_t>() : inputs[0]->shape);
  return OutputMetas({{std::move(meta), -1}});
}

}  // namespace dtorch
