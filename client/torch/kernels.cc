// Which kernel of the device `dtorch` each operator has: the boxed one that sends the call to the workers, for all that
// is not composed of others; own ones where a value crosses between this process and the workers.
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/torch/current_session.h"
#include "client/torch/host_values.h"
#include "client/torch/remote_call.h"
#include "client/torch/remote_tensor.h"

namespace dtorch {
namespace {

// While PyTorch makes a fake tensor it has one of the device meta that it dispatches as this device's.
bool isBeingFaked(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  bool isMeta = false;
  for (auto value = stack.end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size()); value != stack.end();
       ++value) {
    if (!value->isTensor() || !value->toTensor().defined()) continue;
    if (value->toTensor().device().is_privateuseone()) return false;
    isMeta = isMeta || value->toTensor().device().is_meta();
  }
  return isMeta;
}

void boxed(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  if (isBeingFaked(op, *stack)) return op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
  callRemotely(op, stack);
}

void callByName(const char* name, const char* overload, torch::jit::Stack* stack) {
  callRemotely(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload), stack);
}

/// Operators that make a tensor a view of itself, and those that return that view.
struct ViewInPlace {
  const char* name;
  const char* view;
  const char* overload;
};
constexpr std::array kViewsInPlace = {
    ViewInPlace{"squeeze_", "aten::squeeze", ""},
    ViewInPlace{"squeeze_.dim", "aten::squeeze", "dim"},
    ViewInPlace{"squeeze_.dims", "aten::squeeze", "dims"},
    ViewInPlace{"unsqueeze_", "aten::unsqueeze", ""},
    ViewInPlace{"t_", "aten::t", ""},
    ViewInPlace{"transpose_", "aten::transpose", "int"},
    ViewInPlace{"as_strided_", "aten::as_strided", ""},
};

/// The view takes its tensor's place.
template <std::size_t kIndex>
void viewInPlace(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  const at::Tensor self = (*stack)[stack->size() - op.schema().arguments().size()].toTensor();
  callByName(kViewsInPlace[kIndex].view, kViewsInPlace[kIndex].overload, stack);
  const at::Tensor viewed = stack->back().toTensor();
  remoteImpl(self).replace(remoteImpl(viewed).remote(), viewed.sizes(), viewed.strides(), viewed.storage_offset());
  stack->back() = self;
}

at::Tensor onWorkers(const at::Tensor& host, c10::ScalarType dtype) {
  const at::Tensor value = host.to(dtype);
  return makeRemote(putHost(value, currentDestination()), dtype, value.sizes());
}

/// Between this process and the workers, or among workers.
at::Tensor& copyInto(at::Tensor& self, const at::Tensor& source, bool nonBlocking) {
  if (!isRemote(self)) return self.copy_(getHost(source));
  const at::Tensor remote = isRemote(source) ? source : onWorkers(source, self.scalar_type());
  torch::jit::Stack stack{self, remote, nonBlocking};
  callByName("aten::copy_", "", &stack);
  return self;
}

at::Tensor toCopy(const at::Tensor& self, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                  std::optional<c10::Device> device, std::optional<bool> /*pinned*/, bool nonBlocking,
                  std::optional<c10::MemoryFormat> format) {
  const bool toRemote = device ? device->is_privateuseone() : isRemote(self);
  TORCH_CHECK(!layout || *layout == c10::kStrided, "the layout ", *layout, " is not for the device dtorch, strided is");
  if (isRemote(self) && toRemote) {
    torch::jit::Stack stack{self,        dtype, layout, std::optional<c10::Device>(), std::optional<bool>(),
                            nonBlocking, format};
    callByName("aten::_to_copy", "", &stack);
    return stack.back().toTensor();
  }
  if (!isRemote(self)) return onWorkers(self, dtype.value_or(self.scalar_type()));
  at::Tensor host = getHost(self);
  TORCH_CHECK(!device || device->is_cpu(), "from the device dtorch a tensor goes to the CPU first, not to ", *device);
  const auto options = host.options().dtype(dtype.value_or(host.scalar_type()));
  const at::Tensor result =
      format && *format != c10::MemoryFormat::Preserve ? at::empty(host.sizes(), options, format) : at::Tensor();
  return result.defined() ? result.copy_(host) : host.to(options.dtype());
}

/// What reshape() makes where a view will do.
at::Tensor reshapeAlias(const at::Tensor& self, c10::IntArrayRef sizes, c10::IntArrayRef /*strides*/) {
  torch::jit::Stack stack{self, sizes};
  callByName("aten::view", "", &stack);
  return stack.back().toTensor();
}

/// The error is the caller's, at once, as on the CPU.
void checkLinalgErrors(const at::Tensor& info, c10::string_view name, bool isMatrix) {
  at::_linalg_check_errors(getHost(info), name, isMatrix);
}

at::Scalar localScalar(const at::Tensor& self) { return getHost(self).item(); }

at::Tensor emptyStrided(c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides, std::optional<c10::ScalarType> dtype,
                        std::optional<c10::Layout> /*layout*/, std::optional<c10::Device> /*device*/,
                        std::optional<bool> /*pinned*/) {
  const c10::ScalarType type = dtype.value_or(c10::typeMetaToScalarType(c10::get_default_dtype()));
  torch::jit::Stack stack{C10_AS_INTARRAYREF_SLOW(sizes),
                          C10_AS_INTARRAYREF_SLOW(strides),
                          type,
                          c10::IValue(),
                          c10::IValue(),
                          c10::IValue()};
  callByName("aten::empty_strided", "", &stack);
  return stack.back().toTensor();
}

/// What this file has kernels of its own for.
const absl::flat_hash_set<std::string>& ownKernels() {
  static const auto* names = [] {
    auto* all = new absl::flat_hash_set<std::string>{
        "aten::copy_",          "aten::_copy_from",           "aten::_to_copy",      "aten::_local_scalar_dense",
        "aten::_reshape_alias", "aten::_linalg_check_errors", "aten::empty_strided",
    };
    for (const ViewInPlace& each : kViewsInPlace) all->insert(absl::StrCat("aten::", each.name));
    return all;
  }();
  return *names;
}

template <std::size_t... kIndices>
void registerViewsInPlace(torch::Library& library, std::index_sequence<kIndices...> /*indices*/) {
  (library.impl(kViewsInPlace[kIndices].name, torch::CppFunction::makeFromBoxedFunction<&viewInPlace<kIndices>>()),
   ...);
}

bool isForWorkers(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  if (!absl::StartsWith(name.name, "aten::")) return false;
  const std::string full = name.overload_name.empty() ? name.name : absl::StrCat(name.name, ".", name.overload_name);
  if (ownKernels().contains(full)) return false;
  const auto has = [&](c10::DispatchKey key) { return op.hasKernelForDispatchKey(key); };
  if (has(c10::DispatchKey::CPU)) return true;  // as the CPU, also where others compose
  return !has(c10::DispatchKey::CompositeImplicitAutograd) &&
         (has(c10::DispatchKey::CompositeExplicitAutograd) ||
          has(c10::DispatchKey::CompositeExplicitAutogradNonFunctional));
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("copy_", TORCH_FN(copyInto));
  library.impl("_to_copy", TORCH_FN(toCopy));
  library.impl("_reshape_alias", TORCH_FN(reshapeAlias));
  library.impl("_linalg_check_errors", TORCH_FN(checkLinalgErrors));
  library.impl("_local_scalar_dense", TORCH_FN(localScalar));
  library.impl("empty_strided", TORCH_FN(emptyStrided));
  registerViewsInPlace(library, std::make_index_sequence<kViewsInPlace.size()>());
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op || !op->hasSchema() || !isForWorkers(*op)) continue;
    const std::string local = name.name.substr(sizeof("aten::") - 1);
    library.impl((name.overload_name.empty() ? local : absl::StrCat(local, ".", name.overload_name)).c_str(),
                 torch::CppFunction::makeFromBoxedFunction<&boxed>());
  }
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&boxed>()); }

}  // namespace dtorch
