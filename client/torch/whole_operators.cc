// Operators that PyTorch composes of reshapes and products of matrices, which no split of a batch, a sequence or heads
// survives: they go to the workers whole, and have derivatives of their own. Where a transform of torch.func or a fake
// tensor is at work, PyTorch's composition is taken as it is.
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/linear_native.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/matmul_native.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>
#include <ATen/ops/tensordot.h>
#include <ATen/ops/tensordot_native.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>
#include <vector>

#include "client/torch/remote_call.h"
#include "client/torch/remote_tensor.h"

namespace dtorch {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

bool isPlain(const at::Tensor& tensor) {
  return dynamic_cast<const RemoteTensorImpl*>(tensor.unsafeGetTensorImpl()) != nullptr &&
         !c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode) &&
         !tensor._fw_grad(0).defined();
}

at::Tensor call(const char* name, torch::jit::Stack arguments) {
  const at::AutoDispatchBelowADInplaceOrView below;
  callRemotely(c10::Dispatcher::singleton().findSchemaOrThrow(name, ""), &arguments);
  return arguments.back().toTensor();
}

class Matmul final : public Function<Matmul> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& left, const at::Tensor& right) {
    context->save_for_backward({left, right});
    return call("aten::matmul", {left, right});
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    at::Tensor gradient = gradients[0];
    at::Tensor left = saved[0];
    at::Tensor right = saved[1];
    // A vector is a matrix of one row, or column.
    const bool leftIsVector = left.dim() == 1;
    const bool rightIsVector = right.dim() == 1;
    if (leftIsVector) left = left.unsqueeze(0);
    if (rightIsVector) right = right.unsqueeze(1);
    if (rightIsVector) gradient = gradient.unsqueeze(-1);
    if (leftIsVector) gradient = gradient.unsqueeze(-2);
    at::Tensor ofLeft;
    at::Tensor ofRight;
    if (context->needs_input_grad(0)) {
      ofLeft = reduced(gradient, right.transpose(-2, -1).conj(), left, false);
      if (leftIsVector) ofLeft = ofLeft.squeeze(0);
    }
    if (context->needs_input_grad(1)) {
      ofRight = reduced(left.transpose(-2, -1).conj(), gradient, right, true);
      if (rightIsVector) ofRight = ofRight.squeeze(1);
    }
    return {ofLeft, ofRight};
  }

 private:
  /// The product, summed over the batches that `like` has not. Of the usual kind, one matrix for all batches, the sum
  /// is a part of the product.
  static at::Tensor reduced(const at::Tensor& left, const at::Tensor& right, const at::Tensor& like, bool isRight) {
    if (isRight && like.dim() == 2 && left.dim() == right.dim() && left.dim() > 2) {
      std::vector<std::int64_t> rows(static_cast<std::size_t>(left.dim()) - 2);
      std::iota(rows.begin(), rows.end(), 0);
      std::vector<std::int64_t> ofRight = rows;
      rows.push_back(left.dim() - 1);
      ofRight.push_back(right.dim() - 2);
      return at::tensordot(left, right, rows, ofRight);
    }
    return at::matmul(left, right).sum_to_size(like.sizes());
  }
};

class Linear final : public Function<Linear> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias) {
    context->save_for_backward({input, weight});
    context->saved_data["bias"] = bias && bias->defined();
    return call("aten::linear", {input, weight, bias});
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& gradient = gradients[0];
    std::vector<std::int64_t> batch(static_cast<std::size_t>(gradient.dim()) - 1);
    std::iota(batch.begin(), batch.end(), 0);
    at::Tensor ofInput;
    at::Tensor ofWeight;
    at::Tensor ofBias;
    if (context->needs_input_grad(0)) ofInput = at::matmul(gradient, saved[1].conj());
    if (context->needs_input_grad(1)) ofWeight = at::tensordot(gradient, saved[0].conj(), batch, batch);
    if (context->saved_data["bias"].toBool() && context->needs_input_grad(2)) ofBias = gradient.sum(batch);
    return {ofInput, ofWeight, ofBias};
  }
};

class Tensordot final : public Function<Tensordot> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& left, const at::Tensor& right,
                            at::IntArrayRef leftDims, at::IntArrayRef rightDims) {
    context->save_for_backward({left, right});
    context->saved_data["left"] = leftDims;
    context->saved_data["right"] = rightDims;
    return call("aten::tensordot", {left, right, leftDims, rightDims});
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const auto leftDims = context->saved_data["left"].toIntVector();
    const auto rightDims = context->saved_data["right"].toIntVector();
    at::Tensor ofLeft;
    at::Tensor ofRight;
    if (context->needs_input_grad(0)) ofLeft = ofOne(gradients[0], saved[0], leftDims, saved[1], rightDims, false);
    if (context->needs_input_grad(1)) ofRight = ofOne(gradients[0], saved[1], rightDims, saved[0], leftDims, true);
    return {ofLeft, ofRight, at::Tensor(), at::Tensor()};
  }

 private:
  static std::vector<std::int64_t> without(std::int64_t count, const std::vector<std::int64_t>& dims) {
    std::vector<std::int64_t> others;
    for (std::int64_t dim = 0; dim < count; ++dim) {
      const bool isIn =
          std::any_of(dims.begin(), dims.end(), [&](std::int64_t each) { return each == dim || each + count == dim; });
      if (!isIn) others.push_back(dim);
    }
    return others;
  }
  /// `gradient` has the dimensions of `one` that stay, and those of `other`, in this order or, if `isSecond`, the
  /// other.
  static at::Tensor ofOne(const at::Tensor& gradient, const at::Tensor& one, const std::vector<std::int64_t>& dims,
                          const at::Tensor& other, const std::vector<std::int64_t>& otherDims, bool isSecond) {
    const std::vector<std::int64_t> kept = without(one.dim(), dims);
    const std::vector<std::int64_t> otherKept = without(other.dim(), otherDims);
    std::vector<std::int64_t> contracted(otherKept.size());
    std::iota(contracted.begin(), contracted.end(), isSecond ? 0 : static_cast<std::int64_t>(kept.size()));
    // Its dimensions: those that are kept, then the contracted ones in the order in which `other` has them.
    const at::Tensor made = at::tensordot(gradient, other.conj(), contracted, otherKept);
    std::vector<std::int64_t> ascending = otherDims;
    for (std::int64_t& dim : ascending) dim = dim < 0 ? dim + other.dim() : dim;
    std::sort(ascending.begin(), ascending.end());
    std::vector<std::int64_t> order(static_cast<std::size_t>(one.dim()));
    for (std::size_t k = 0; k < kept.size(); ++k)
      order[static_cast<std::size_t>(kept[k])] = static_cast<std::int64_t>(k);
    for (std::size_t c = 0; c < dims.size(); ++c) {
      const std::int64_t otherDim = otherDims[c] < 0 ? otherDims[c] + other.dim() : otherDims[c];
      const auto at = std::find(ascending.begin(), ascending.end(), otherDim) - ascending.begin();
      const std::int64_t dim = dims[c] < 0 ? dims[c] + one.dim() : dims[c];
      order[static_cast<std::size_t>(dim)] = static_cast<std::int64_t>(kept.size()) + at;
    }
    return made.permute(order);
  }
};

at::Tensor matmul(const at::Tensor& left, const at::Tensor& right) {
  const bool isWhole = left.dim() > 0 && right.dim() > 0 && (left.dim() > 2 || right.dim() > 2);
  return isWhole && isPlain(left) && isPlain(right) ? Matmul::apply(left, right) : at::native::matmul(left, right);
}

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  const bool isWhole = input.dim() > 2 && weight.dim() == 2 && isPlain(input) && isPlain(weight) &&
                       (!bias || !bias->defined() || isPlain(*bias));
  return isWhole ? Linear::apply(input, weight, bias) : at::native::linear(input, weight, bias);
}

at::Tensor tensordot(const at::Tensor& left, const at::Tensor& right, at::IntArrayRef leftDims,
                     at::IntArrayRef rightDims) {
  bool isWhole = isPlain(left) && isPlain(right) && leftDims.size() == rightDims.size();
  // One of extent 1 is summed over what it is contracted with.
  for (std::size_t d = 0; isWhole && d < leftDims.size(); ++d)
    isWhole = left.size(leftDims[d]) == right.size(rightDims[d]);
  return isWhole ? Tensordot::apply(left, right, leftDims, rightDims)
                 : at::native::tensordot(left, right, leftDims, rightDims);
}

/// As PyTorch chooses the fused kernel on the CPU.
bool isFused(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
             const std::optional<at::Tensor>& mask, double dropout, bool isCausal, bool groups) {
  const auto isFit = [&](const at::Tensor& each) {
    return isPlain(each) && each.dim() == 4 && each.size(-1) == query.size(-1) && each.size(-2) > 0 &&
           each.size(0) == query.size(0) && each.stride(-1) == 1 && each.size(1) == query.size(1);
  };
  const bool maskFits =
      !mask || !mask->defined() ||
      (!isCausal && !mask->requires_grad() && isPlain(*mask) && (mask->dim() == 2 || mask->dim() == 4));
  return dropout == 0 && !groups && isFit(query) && isFit(key) && isFit(value) && maskFits;
}

at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& mask, double dropout, bool isCausal, std::optional<double> scale,
                     bool groups) {
  if (!isFused(query, key, value, mask, dropout, isCausal, groups)) {
    return at::native::scaled_dot_product_attention(query, key, value, mask, dropout, isCausal, scale, groups);
  }
  std::optional<at::Tensor> bias = mask;
  if (mask && mask->defined() && mask->scalar_type() == at::kBool) {
    bias = at::zeros_like(*mask, query.options())
               .masked_fill_(mask->logical_not(), -std::numeric_limits<double>::infinity());
  }
  return std::get<0>(
      at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout, isCausal, bias, scale));
}

// PyTorch takes its fused cells on any device but the CPU; here they are what the CPU composes.
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstmCell(const at::Tensor& inputGates, const at::Tensor& hiddenGates,
                                                        const at::Tensor& cell,
                                                        const std::optional<at::Tensor>& inputBias,
                                                        const std::optional<at::Tensor>& hiddenBias) {
  at::Tensor gates = inputGates + hiddenGates;
  if (inputBias && inputBias->defined()) gates = gates + *inputBias + *hiddenBias;
  const std::vector<at::Tensor> each = gates.chunk(4, 1);
  const at::Tensor next = each[1].sigmoid() * cell + each[0].sigmoid() * each[2].tanh();
  return {each[3].sigmoid() * next.tanh(), next, at::Tensor(gates)};
}

std::tuple<at::Tensor, at::Tensor> gruCell(const at::Tensor& inputGates, const at::Tensor& hiddenGates,
                                           const at::Tensor& hidden, const std::optional<at::Tensor>& inputBias,
                                           const std::optional<at::Tensor>& hiddenBias) {
  const bool biased = inputBias && inputBias->defined();
  const std::vector<at::Tensor> ofInput = (biased ? inputGates + *inputBias : inputGates).chunk(3, 1);
  const std::vector<at::Tensor> ofHidden = (biased ? hiddenGates + *hiddenBias : hiddenGates).chunk(3, 1);
  const at::Tensor reset = (ofInput[0] + ofHidden[0]).sigmoid();
  const at::Tensor update = (ofInput[1] + ofHidden[1]).sigmoid();
  const at::Tensor made = (ofInput[2] + reset * ofHidden[2]).tanh();
  return {(hidden - made) * update + made, at::Tensor(made)};
}

void registerAll(torch::Library& library) {
  library.impl("_thnn_fused_lstm_cell", TORCH_FN(lstmCell));
  library.impl("_thnn_fused_gru_cell", TORCH_FN(gruCell));

  library.impl("matmul", TORCH_FN(matmul));
  library.impl("linear", TORCH_FN(linear));
  library.impl("tensordot", TORCH_FN(tensordot));
  library.impl("scaled_dot_product_attention", TORCH_FN(attention));
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, library) { registerAll(library); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) { registerAll(library); }

}  // namespace dtorch
