#include "dispatch/shape_check.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace dtorch {
namespace {

using Shape = std::vector<std::int64_t>;

std::string text(c10::IntArrayRef shape) {
  std::ostringstream out;
  out << shape;
  return out.str();
}

absl::Status hasShape(const CallArguments& call, absl::string_view argument, c10::IntArrayRef wanted) {
  const at::Tensor* given = call.tensor(argument);
  if (given == nullptr || given->sizes() == wanted) return absl::OkStatus();
  return call.refuse(argument, absl::StrCat("has shape ", text(given->sizes()), " where ", text(wanted), " is read"));
}

// `argument` has as many dimensions as `as`, and all but the last `free` of the same extents.
absl::Status leadsAs(const CallArguments& call, absl::string_view argument, const at::Tensor& as, std::int64_t free) {
  const at::Tensor* given = call.tensor(argument);
  if (given == nullptr || as.dim() < free) return absl::OkStatus();
  const auto leading = static_cast<std::size_t>(as.dim() - free);
  if (given->dim() == as.dim() && given->sizes().slice(0, leading) == as.sizes().slice(0, leading)) {
    return absl::OkStatus();
  }
  return call.refuse(argument, absl::StrCat("of shape ", text(given->sizes()), " does not go with ", text(as.sizes())));
}

// What is of the shape that the operator `forward` returns for the same arguments.
struct OfForward {
  const char* forward;
  std::vector<absl::string_view> arguments;  // one for each of its results, or for the first ones

  absl::Status operator()(const CallArguments& call) const {
    // Forward operators refuse what has no elements, where the backward takes it.
    if (const at::Tensor* self = call.tensor("self"); self != nullptr && self->numel() == 0) {
      for (const absl::string_view argument : arguments) {
        const at::Tensor* given = call.tensor(argument);
        if (given != nullptr && given->numel() > 0) return call.refuse(argument, "has elements, and self has none");
      }
      return absl::OkStatus();
    }
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(forward, "");
    torch::jit::Stack stack;
    for (const c10::Argument& parameter : op.schema().arguments()) {
      const c10::IValue* given = call.find(parameter.name());
      if (given == nullptr) {
        if (!parameter.default_value()) return absl::InternalError(absl::StrCat(forward, " takes more arguments"));
        stack.push_back(*parameter.default_value());
      } else if (given->isTensor() && given->toTensor().defined()) {
        const at::Tensor& tensor = given->toTensor();
        stack.emplace_back(at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kMeta)));
      } else {
        stack.push_back(*given);
      }
    }
    op.callBoxed(&stack);
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      if (absl::Status status = hasShape(call, arguments[i], stack[i].toTensor().sizes()); !status.ok()) return status;
    }
    return absl::OkStatus();
  }
};

// The number of windows along one dimension.
std::int64_t windows(std::int64_t extent, std::int64_t kernel, std::int64_t stride, std::int64_t padding,
                     std::int64_t dilation, bool ceil) {
  const std::int64_t room = extent + 2 * padding - dilation * (kernel - 1) - 1;
  const std::int64_t count = (room + (ceil ? stride - 1 : 0)) / stride + 1;
  // None begins in the padding on the right.
  return ceil && (count - 1) * stride >= extent + padding ? count - 1 : count;
}

// LibTorch 2.11 has no C++ Meta kernel of the forward operator.
absl::Status maxPool3d(const CallArguments& call) {
  const at::Tensor* self = call.tensor("self");
  const auto kernel = call.integers("kernel_size");
  const auto given = call.integers("stride");
  const auto stride = given && given->empty() ? kernel : given;
  const auto padding = call.integers("padding");
  const auto dilation = call.integers("dilation");
  if (self == nullptr || self->dim() < 3 || !kernel || !stride || !padding || !dilation) return absl::OkStatus();
  const auto at = [](const Shape& values, std::size_t i) { return values.size() == 1 ? values[0] : values[i]; };
  Shape pooled = self->sizes().vec();
  for (std::size_t d = 0; d < 3; ++d) {
    for (const Shape* values : {&*kernel, &*stride, &*padding, &*dilation}) {
      if (values->size() != 1 && values->size() != 3) return absl::OkStatus();  // the kernel refuses it
    }
    if (at(*stride, d) <= 0) return call.refuse("stride", absl::StrCat("is ", at(*stride, d)));
    std::int64_t& extent = pooled[pooled.size() - 3 + d];
    extent = windows(extent, at(*kernel, d), at(*stride, d), at(*padding, d), at(*dilation, d), call.flag("ceil_mode"));
  }
  if (absl::Status status = hasShape(call, "grad_output", pooled); !status.ok()) return status;
  return hasShape(call, "indices", pooled);
}

absl::Status fractionalPool(const CallArguments& call) {
  const at::Tensor* self = call.tensor("self");
  const auto output = call.integers("output_size");
  if (self == nullptr || !output || self->dim() < static_cast<std::int64_t>(output->size())) return absl::OkStatus();
  Shape pooled = self->sizes().vec();
  std::copy(output->begin(), output->end(), pooled.end() - static_cast<std::ptrdiff_t>(output->size()));
  if (absl::Status status = hasShape(call, "grad_output", pooled); !status.ok()) return status;
  return hasShape(call, "indices", pooled);
}

// The gradient of an adaptive pool tells the pool's size; what leads is the input's.
template <std::int64_t kDims>
absl::Status adaptivePool(const CallArguments& call) {
  const at::Tensor* self = call.tensor("self");
  const at::Tensor* grad = call.tensor("grad_output");
  if (self == nullptr || grad == nullptr) return absl::OkStatus();
  if (absl::Status status = leadsAs(call, "grad_output", *self, kDims); !status.ok()) return status;
  return hasShape(call, "indices", grad->sizes());
}

absl::Status softmaxGradient(const CallArguments& call) {
  const at::Tensor* output = call.tensor("output");
  return output == nullptr ? absl::OkStatus() : hasShape(call, "grad_output", output->sizes());
}

absl::Status allHaveElements(const CallArguments& call, std::initializer_list<absl::string_view> arguments,
                             std::int64_t wanted) {
  for (const absl::string_view argument : arguments) {
    if (absl::Status status = hasElements(call, argument, wanted); !status.ok()) return status;
  }
  return absl::OkStatus();
}

// `arguments` are there, as far as the schema knows them, with enough elements.
absl::Status needs(const CallArguments& call, std::initializer_list<absl::string_view> arguments, std::int64_t wanted) {
  for (const absl::string_view argument : arguments) {
    if (call.find(argument) != nullptr && call.tensor(argument) == nullptr) return call.refuse(argument, "is missing");
  }
  return allHaveElements(call, arguments, wanted);
}

absl::Status hasChannels(const CallArguments& call) {
  const at::Tensor* input = call.tensor("input");
  return input == nullptr || input->dim() > 1 ? absl::OkStatus() : call.refuse("input", "has no dimension of channels");
}

absl::Status batchNormTraining(const CallArguments& call) {
  if (absl::Status status = hasChannels(call); !status.ok()) return status;
  return allHaveElements(call, {"weight", "bias", "running_mean", "running_var"}, sizeOr(call.tensor("input"), 1, 0));
}

absl::Status batchNormInference(const CallArguments& call) {
  if (absl::Status status = batchNormTraining(call); !status.ok()) return status;
  if (call.find("running_mean") == nullptr) return call.refuse("training", "is false, and there are no statistics");
  return needs(call, {"running_mean", "running_var"}, sizeOr(call.tensor("input"), 1, 0));
}

absl::Status batchNorm(const CallArguments& call) {
  return call.flag("training") ? batchNormTraining(call) : batchNormInference(call);
}

absl::Status batchNormGradient(const CallArguments& call) {
  const at::Tensor* input = call.tensor("input");
  if (input == nullptr) return absl::OkStatus();
  if (absl::Status status = hasChannels(call); !status.ok()) return status;
  for (const absl::string_view grad : {"grad_out", "grad_output"}) {
    if (absl::Status status = hasShape(call, grad, input->sizes()); !status.ok()) return status;
  }
  const std::int64_t channels = input->size(1);
  if (absl::Status status = hasElements(call, "weight", channels); !status.ok()) return status;
  // Those of the batch in training, else the running ones.
  const bool training = call.flag("train") || call.flag("update");
  if (!training) return needs(call, {"running_mean", "running_var"}, channels);
  return needs(call, {"save_mean", "save_invstd", "save_var", "save_var_transform"}, channels);
}

absl::Status layerNormGradient(const CallArguments& call) {
  const at::Tensor* input = call.tensor("input");
  const auto normalized = call.integers("normalized_shape");
  if (input == nullptr || !normalized || input->dim() < static_cast<std::int64_t>(normalized->size())) {
    return absl::OkStatus();
  }
  if (absl::Status status = hasShape(call, "grad_out", input->sizes()); !status.ok()) return status;
  std::int64_t rows = 1;
  for (std::int64_t d = 0; d < input->dim() - static_cast<std::int64_t>(normalized->size()); ++d)
    rows *= input->size(d);
  return allHaveElements(call, {"mean", "rstd"}, rows);
}

// With reduction "none" a gradient a sample.
absl::Status marginGradient(const CallArguments& call) {
  const at::Tensor* self = call.tensor("self");
  if (self == nullptr) return absl::OkStatus();
  const bool each = call.integer("reduction", 1) == 0 && self->dim() > 1;
  return hasElements(call, "grad_output", each ? self->size(0) : 1);
}

absl::Status unpackedPivots(const CallArguments& call) {
  const at::Tensor* factors = call.tensor("LU_data");
  if (factors == nullptr || factors->dim() < 2 || !call.flag("unpack_pivots")) return absl::OkStatus();
  Shape wanted = factors->sizes().vec();
  wanted.pop_back();
  wanted.back() = std::min(factors->size(-1), factors->size(-2));
  return hasShape(call, "LU_pivots", wanted);
}

// The places of a grid, of the input's batch and channels.
absl::Status gridGradient(const CallArguments& call) {
  const at::Tensor* input = call.tensor("input");
  const at::Tensor* grid = call.tensor("grid");
  if (input == nullptr || grid == nullptr || input->dim() < 4 || grid->dim() != input->dim()) return absl::OkStatus();
  Shape wanted = grid->sizes().vec();
  wanted.pop_back();
  if (wanted[0] != input->size(0) || grid->size(-1) != input->dim() - 2) {
    return call.refuse("grid", absl::StrCat("of shape ", text(grid->sizes()), " is none for ", text(input->sizes())));
  }
  wanted.insert(wanted.begin() + 1, input->size(1));
  return hasShape(call, "grad_output", wanted);
}

absl::Status unfoldGradient(const CallArguments& call) {
  const auto sizes = call.integers("input_sizes");
  const std::int64_t size = call.integer("size", 0);
  const std::int64_t step = call.integer("step", 0);
  std::int64_t dim = call.integer("dim", 0);
  if (!sizes || sizes->empty()) return absl::OkStatus();
  if (dim < 0) dim += static_cast<std::int64_t>(sizes->size());
  if (dim < 0 || dim >= static_cast<std::int64_t>(sizes->size())) return absl::OkStatus();
  Shape wanted = *sizes;
  std::int64_t& extent = wanted[static_cast<std::size_t>(dim)];
  if (step <= 0 || size < 0 || size > extent) return call.refuse("size", absl::StrCat(size, " by ", step, " is none"));
  extent = (extent - size) / step + 1;
  wanted.push_back(size);
  return hasShape(call, "grad_in", wanted);
}

absl::Status pairwiseGradient(const CallArguments& call) {
  const at::Tensor* self = call.tensor("self");
  if (self == nullptr || self->dim() != 2) return absl::OkStatus();
  return allHaveElements(call, {"grad", "pdist"}, self->size(0) * (self->size(0) - 1) / 2);
}

absl::Status distanceGradient(const CallArguments& call) {
  const at::Tensor* x1 = call.tensor("x1");
  const at::Tensor* x2 = call.tensor("x2");
  if (x1 == nullptr || x2 == nullptr || x1->dim() < 2 || x2->dim() < 2) return absl::OkStatus();
  const auto batchOf = [](const at::Tensor& x) { return x.sizes().slice(0, static_cast<std::size_t>(x.dim() - 2)); };
  Shape wanted = at::infer_size(batchOf(*x1), batchOf(*x2));
  wanted.push_back(x1->size(-2));
  wanted.push_back(x2->size(-2));
  if (absl::Status status = hasShape(call, "grad", wanted); !status.ok()) return status;
  return hasShape(call, "cdist", wanted);
}

absl::Status segmentsOf(const CallArguments& call, absl::string_view argument, std::int64_t axis, bool offsets) {
  const at::Tensor* data = call.tensor("data");
  const at::Tensor* given = call.tensor(argument);
  if (given == nullptr) return absl::OkStatus();
  if (given->dim() != axis + 1) return call.refuse(argument, absl::StrCat("has ", given->dim(), " dimensions"));
  Shape wanted = data->sizes().vec();
  std::copy(given->sizes().begin(), given->sizes().end(), wanted.begin());
  const auto leading = static_cast<std::size_t>(axis);
  if (given->sizes().slice(0, leading) != data->sizes().slice(0, leading)) {
    return call.refuse(argument, absl::StrCat("of shape ", text(given->sizes()), " is none for ", text(data->sizes())));
  }
  if (offsets && --wanted[leading] < 0) return call.refuse(argument, "has no offset");
  if (absl::Status status = hasShape(call, "grad", wanted); !status.ok()) return status;
  return hasShape(call, "output", wanted);
}

absl::Status segments(const CallArguments& call) {
  const at::Tensor* data = call.tensor("data");
  if (data == nullptr) return absl::OkStatus();
  std::int64_t axis = call.integer("axis", 0);
  if (axis < 0) axis += data->dim();
  if (axis < 0 || axis >= data->dim()) return call.refuse("axis", absl::StrCat("is ", axis));
  if (absl::Status status = segmentsOf(call, "lengths", axis, false); !status.ok()) return status;
  return segmentsOf(call, "offsets", axis, true);
}

absl::Status bagGradient(const CallArguments& call) {
  const at::Tensor* grad = call.tensor("grad");
  const at::Tensor* weight = call.tensor("weight");
  if (grad != nullptr && grad->dim() != 2) return call.refuse("grad", "is not a row a bag");
  if (grad == nullptr || weight == nullptr) return absl::OkStatus();
  return hasShape(call, "weight", {sizeOr(weight, 0, 0), grad->size(1)});
}

// Of each row or column of the matrix its norm.
absl::Status weightNorm(const CallArguments& call) {
  for (const auto& [matrix, norms] : {std::pair("v", "g"), std::pair("saved_v", "saved_g")}) {
    const at::Tensor* of = call.tensor(matrix);
    const std::int64_t dim = call.integer("dim", 0);
    if (of == nullptr || (dim != 0 && dim != of->dim() - 1)) continue;
    if (absl::Status status = hasShape(call, "grad_w", of->sizes()); !status.ok()) return status;
    if (absl::Status status = allHaveElements(call, {norms, "saved_norms"}, sizeOr(of, dim, 1)); !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

absl::Status attention(const CallArguments& call) {
  const at::Tensor* query = call.tensor("query");
  const at::Tensor* key = call.tensor("key");
  const at::Tensor* value = call.tensor("value");
  if (query == nullptr || key == nullptr || value == nullptr || query->dim() != 4 || key->dim() != 4) {
    return absl::OkStatus();  // the kernel refuses it
  }
  const auto goWith = [&](absl::string_view argument, const at::Tensor& given, c10::IntArrayRef wanted) {
    if (given.sizes() == wanted) return absl::OkStatus();
    return call.refuse(argument, absl::StrCat("has shape ", text(given.sizes()), " where ", text(wanted), " is read"));
  };
  const std::int64_t heads = key->size(1);
  if (heads == 0 || query->size(1) % heads != 0) {
    return call.refuse("key", absl::StrCat("has ", heads, " heads, query has ", query->size(1)));
  }
  absl::Status status = goWith("key", *key, {query->size(0), heads, key->size(2), query->size(3)});
  if (status.ok()) status = goWith("value", *value, key->sizes());
  if (status.ok()) status = hasShape(call, "grad_out", query->sizes());
  if (status.ok()) status = hasShape(call, "out", query->sizes());
  if (status.ok()) status = hasElements(call, "logsumexp", query->numel() / std::max<std::int64_t>(query->size(3), 1));
  return status;
}

absl::Status projected(const CallArguments& call) {
  for (const absl::string_view heads : {"num_heads", "num_head"}) {
    if (call.integer(heads, 1) < 1) return call.refuse(heads, "is not a number of heads");
  }
  return hasElements(call, "qkv_bias", sizeOr(call.tensor("qkv"), -1, 0));
}

absl::Status transposedConvolution(const CallArguments& call) {
  const at::Tensor* weight = call.tensor("weight");
  const auto kernel = call.integers("kernel_size");
  if (weight == nullptr || !kernel || weight->dim() < 3) return absl::OkStatus();
  Shape wanted = weight->sizes().vec();
  if (kernel->size() != 1 && kernel->size() + 2 != wanted.size()) {
    return call.refuse("kernel_size",
                       absl::StrCat("has ", kernel->size(), " numbers where ", wanted.size() - 2, " are read"));
  }
  for (std::size_t d = 2; d < wanted.size(); ++d) wanted[d] = (*kernel)[kernel->size() == 1 ? 0 : d - 2];
  return hasShape(call, "weight", wanted);
}

// The lists of a fused optimizer: what belongs to a parameter has its extents, and the memory of each is dense.
absl::Status fusedOptimizer(const CallArguments& call) {
  const c10::IValue* self = call.find("self");
  if (self == nullptr || !self->isTensorList()) return absl::OkStatus();
  const std::vector<at::Tensor> parameters = self->toTensorVector();
  for (const absl::string_view name :
       {"self", "grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs", "momentum_buffer_list", "state_sums"}) {
    const c10::IValue* list = call.find(name);
    if (list == nullptr || !list->isTensorList()) continue;
    const std::vector<at::Tensor> tensors = list->toTensorVector();
    for (std::size_t i = 0; i < std::min(tensors.size(), parameters.size()); ++i) {
      if (!tensors[i].defined()) continue;
      // Its numbers are taken one after the other, from all of them together.
      if (tensors[i].sizes() == parameters[i].sizes() && tensors[i].is_non_overlapping_and_dense() &&
          tensors[i].strides() == parameters[i].strides()) {
        continue;
      }
      return call.refuse(
          name, absl::StrCat("holds, at ", i, ", a tensor of shape ", text(tensors[i].sizes()),
                             " that is not a dense one of shape ", text(parameters[i].sizes()), " in the same order"));
    }
  }
  return absl::OkStatus();
}

absl::Status lstm(const CallArguments& call) {
  const at::Tensor* input = call.tensor("input");
  const c10::IValue* states = call.find("hx");
  const c10::IValue* given = call.find("params");
  if (input == nullptr || states == nullptr || !states->isTensorList() || given == nullptr || !given->isTensorList()) {
    return absl::OkStatus();  // of a packed sequence: its kernel checks
  }
  const std::vector<at::Tensor> state = states->toTensorVector();
  const std::vector<at::Tensor> weights = given->toTensorVector();
  if (input->dim() != 3 || state.size() != 2 || state[0].dim() != 3 || state[1].dim() != 3) {
    return call.refuse("hx", "or input have not three dimensions");
  }
  const std::int64_t layers = call.integer("num_layers", 1);
  if (layers < 1 || layers > static_cast<std::int64_t>(weights.size())) {
    return call.refuse("num_layers", absl::StrCat("is ", layers, " where params has ", weights.size(), " tensors"));
  }
  const std::int64_t directions = call.flag("bidirectional") ? 2 : 1;
  const std::int64_t batch = input->size(call.flag("batch_first") ? 0 : 1);
  const std::int64_t hidden = state[1].size(2);
  const std::int64_t projected = state[0].size(2);
  if (state[0].sizes() != c10::IntArrayRef({layers * directions, batch, projected}) ||
      state[1].sizes() != c10::IntArrayRef({layers * directions, batch, hidden})) {
    return call.refuse("hx", absl::StrCat("of shape ", text(state[0].sizes()), " is none for ", text(input->sizes())));
  }
  std::vector<Shape> wanted;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    for (std::int64_t direction = 0; direction < directions; ++direction) {
      wanted.push_back({4 * hidden, layer == 0 ? input->size(2) : projected * directions});
      wanted.push_back({4 * hidden, projected});
      if (call.flag("has_biases")) wanted.insert(wanted.end(), 2, Shape{4 * hidden});
      if (projected != hidden) wanted.push_back({projected, hidden});
    }
  }
  if (weights.size() != wanted.size()) {
    return call.refuse("params", absl::StrCat("has ", weights.size(), " tensors where ", wanted.size(), " are read"));
  }
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (weights[i].sizes() == wanted[i]) continue;
    return call.refuse("params", absl::StrCat("holds, at ", i, ", shape ", text(weights[i].sizes()), " where ",
                                              text(wanted[i]), " is read"));
  }
  return absl::OkStatus();
}

struct Row {
  absl::string_view name;
  absl::Status (*check)(const CallArguments& call);
};

// Found with wrong shapes and guard pages behind the tensors, on LibTorch 2.11's CPU kernels. An LSTM's layers run in
// oneDNN, which asks nothing.
constexpr std::array<Row, 53> kChecks = {{
    {"aten::lstm", lstm},
    {"aten::_log_softmax_backward_data", softmaxGradient},
    {"aten::_softmax_backward_data", softmaxGradient},
    {"aten::native_batch_norm", batchNorm},
    {"aten::_native_batch_norm_legit", batchNorm},
    {"aten::_native_batch_norm_legit_functional", batchNorm},
    {"aten::_native_batch_norm_legit_no_training", batchNormInference},
    {"aten::_batch_norm_no_update", batchNormInference},
    {"aten::_batch_norm_with_update", batchNormTraining},
    {"aten::_batch_norm_with_update_functional", batchNormTraining},
    {"aten::batch_norm_update_stats", batchNormTraining},
    {"aten::native_batch_norm_backward", batchNormGradient},
    {"aten::batch_norm_backward", batchNormGradient},
    {"aten::_batch_norm_impl_index_backward", batchNormGradient},
    {"aten::native_layer_norm_backward", layerNormGradient},
    {"aten::max_pool3d_with_indices_backward", maxPool3d},
    {"aten::fractional_max_pool2d_backward", fractionalPool},
    {"aten::fractional_max_pool3d_backward", fractionalPool},
    {"aten::_adaptive_avg_pool2d_backward", adaptivePool<2>},
    {"aten::_adaptive_avg_pool3d_backward", adaptivePool<3>},
    {"aten::adaptive_max_pool2d_backward", adaptivePool<2>},
    {"aten::adaptive_max_pool3d_backward", adaptivePool<3>},
    {"aten::multi_margin_loss_backward", marginGradient},
    {"aten::multilabel_margin_loss_backward", marginGradient},
    {"aten::lu_unpack", unpackedPivots},
    {"aten::grid_sampler_2d_backward", gridGradient},
    {"aten::grid_sampler_3d_backward", gridGradient},
    {"aten::unfold_backward", unfoldGradient},
    {"aten::_pdist_backward", pairwiseGradient},
    {"aten::_cdist_backward", distanceGradient},
    {"aten::segment_reduce", segments},
    {"aten::_segment_reduce_backward", segments},
    {"aten::_embedding_bag_backward", bagGradient},
    {"aten::_embedding_bag_dense_backward", bagGradient},
    {"aten::_embedding_bag_sparse_backward", bagGradient},
    {"aten::_embedding_bag_per_sample_weights_backward", bagGradient},
    {"aten::_weight_norm", weightNorm},
    {"aten::_weight_norm_interface", weightNorm},
    {"aten::_weight_norm_interface_backward", weightNorm},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", attention},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", attention},
    {"aten::_transform_bias_rescale_qkv", projected},
    {"aten::_native_multi_head_attention", projected},
    {"aten::_transformer_encoder_layer_fwd", projected},
    {"aten::slow_conv_transpose3d", transposedConvolution},
    {"aten::_fused_adam_", fusedOptimizer},
    {"aten::_fused_adam", fusedOptimizer},
    {"aten::_fused_adamw_", fusedOptimizer},
    {"aten::_fused_adamw", fusedOptimizer},
    {"aten::_fused_sgd_", fusedOptimizer},
    {"aten::_fused_sgd", fusedOptimizer},
    {"aten::_fused_adagrad_", fusedOptimizer},
    {"aten::_fused_adagrad", fusedOptimizer},
}};

const std::array<std::pair<absl::string_view, OfForward>, 8>& forwards() {
  static const std::array<std::pair<absl::string_view, OfForward>, 8> rows = {{
      {"aten::avg_pool2d_backward", {"aten::avg_pool2d", {"grad_output"}}},
      {"aten::avg_pool3d_backward", {"aten::avg_pool3d", {"grad_output"}}},
      {"aten::max_pool2d_with_indices_backward", {"aten::max_pool2d_with_indices", {"grad_output", "indices"}}},
      {"aten::reflection_pad1d_backward", {"aten::reflection_pad1d", {"grad_output"}}},
      {"aten::reflection_pad3d_backward", {"aten::reflection_pad3d", {"grad_output"}}},
      {"aten::replication_pad1d_backward", {"aten::replication_pad1d", {"grad_output"}}},
      {"aten::replication_pad2d_backward", {"aten::replication_pad2d", {"grad_output"}}},
      {"aten::replication_pad3d_backward", {"aten::replication_pad3d", {"grad_output"}}},
  }};
  return rows;
}

}  // namespace

ArgumentCheck shapeCheckOf(absl::string_view name) {
  const auto* row = std::find_if(kChecks.begin(), kChecks.end(), [&](const Row& r) { return r.name == name; });
  if (row != kChecks.end()) return row->check;
  for (const auto& [backward, check] : forwards()) {
    if (backward == name) return check;
  }
  return nullptr;
}

}  // namespace dtorch
