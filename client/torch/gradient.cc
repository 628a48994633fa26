// Where gradients lie, and how redistribution is differentiated.
#include "client/torch/gradient.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "client/torch/call_site.h"
#include "client/torch/current_session.h"
#include "core/placement.h"

namespace dtorch {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor redistribute(const at::Tensor& tensor, const std::string& placements) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("dtorch_device::redistribute", "")
                             .typed<at::Tensor(const at::Tensor&, const std::string&)>();
  return op.call(tensor, placements);
}

at::Tensor asGradientOf(const at::Tensor& gradient, const at::Tensor& tensor, bool share) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("dtorch_device::as_gradient_of", "")
                             .typed<at::Tensor(const at::Tensor&, const at::Tensor&, bool)>();
  return op.call(gradient, tensor, share);
}

/// Whether nobody but this list has it: PyTorch may make it a leaf's, or add to it.
bool isOwn(const at::Tensor& gradient) { return gradient.use_count() == 1; }

at::Tensor redistributeRemote(const at::Tensor& tensor, const std::string& text) {
  absl::StatusOr<Placements> placements = parsePlacements(text);
  if (!placements.ok()) raise(placements.status());
  const Tensor moved =
      remoteImpl(tensor).remote().redistribute(*std::move(placements), {.timeout = currentTimeLimit()}, callSite());
  return makeRemote(moved, tensor.scalar_type(), tensor.sizes());
}

at::Tensor asGradientOfRemote(const at::Tensor& gradient, const at::Tensor& tensor, bool share) {
  const Tensor& of = remoteImpl(tensor).remote();
  const Tensor moved = remoteImpl(gradient).remote().redistributeAsGradientOf(of, share, callSite());
  return makeRemote(moved, gradient.scalar_type(), gradient.sizes());
}

class Redistribute final : public torch::autograd::Function<Redistribute> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor, const std::string& placements) {
    // For where it lies: that may be written to meanwhile.
    context->saved_data["tensor"] = tensor.detach();
    const at::AutoDispatchBelowADInplaceOrView below;
    return redistribute(tensor, placements);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const bool share = isOwn(gradients[0]);
    return {asGradientOf(gradients[0], context->saved_data["tensor"].toTensor(), share), at::Tensor()};
  }
};

class AsGradientOf final : public torch::autograd::Function<AsGradientOf> {
 public:
  static at::Tensor forward(AutogradContext* /*context*/, const at::Tensor& gradient, const at::Tensor& tensor,
                            bool share) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return asGradientOf(gradient, tensor, share);
  }
  static variable_list backward(AutogradContext* /*context*/, const variable_list& gradients) {
    return {gradients[0], at::Tensor(), at::Tensor()};
  }
};

at::Tensor redistributeDifferentiably(const at::Tensor& tensor, const std::string& placements) {
  return Redistribute::apply(tensor, placements);
}

at::Tensor asGradientOfDifferentiably(const at::Tensor& gradient, const at::Tensor& tensor, bool share) {
  return AsGradientOf::apply(gradient, tensor, share);
}

/// Owns nothing: the leaf owns it.
class PlaceGradient final : public torch::autograd::FunctionPreHook {
 public:
  explicit PlaceGradient(RemoteTensorImpl& leaf)
      : leaf_(c10::intrusive_ptr<c10::TensorImpl>::unsafe_reclaim_from_nonowning(&leaf)) {}
  variable_list operator()(const variable_list& gradients) override {
    const c10::intrusive_ptr<c10::TensorImpl> leaf = leaf_.lock();
    if (!leaf || !isRemote(gradients[0])) return gradients;
    return {asGradientOf(gradients[0], at::Tensor(leaf), isOwn(gradients[0]))};
  }

 private:
  c10::weak_intrusive_ptr<c10::TensorImpl> leaf_;
};

}  // namespace

void placeGradientOf(RemoteTensorImpl& tensor) {
  const at::Tensor leaf(c10::intrusive_ptr<c10::TensorImpl>::unsafe_reclaim_from_nonowning(&tensor));
  auto* meta = torch::autograd::impl::get_autograd_meta(leaf);
  if (meta == nullptr || meta->grad_fn_ != nullptr || !meta->requires_grad_) return;
  // Before all hooks of the program's: one that is registered for the first time clears those that there are.
  const std::lock_guard lock(meta->mutex_);
  auto& hooks = meta->hooks_;
  if (!hooks.empty() && dynamic_cast<PlaceGradient*>(hooks.front().get()) != nullptr) return;
  hooks.insert(hooks.begin(), std::make_unique<PlaceGradient>(tensor));
}

namespace {

void placeGradient(const at::Tensor& tensor) { placeGradientOf(remoteImpl(tensor)); }

}  // namespace

TORCH_LIBRARY_FRAGMENT(dtorch_device, library) {
  library.def("redistribute(Tensor tensor, str placements) -> Tensor");
  library.def("as_gradient_of(Tensor gradient, Tensor tensor, bool share) -> Tensor");
  library.def("place_gradient(Tensor tensor) -> ()", TORCH_FN(placeGradient));
}

TORCH_LIBRARY_IMPL(dtorch_device, PrivateUse1, library) {
  library.impl("redistribute", TORCH_FN(redistributeRemote));
  library.impl("as_gradient_of", TORCH_FN(asGradientOfRemote));
}

TORCH_LIBRARY_IMPL(dtorch_device, Autograd, library) {
  library.impl("redistribute", TORCH_FN(redistributeDifferentiably));
  library.impl("as_gradient_of", TORCH_FN(asGradientOfDifferentiably));
}

}  // namespace dtorch
