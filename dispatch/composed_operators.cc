#include "dispatch/composed_operators.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/silu.h>
#include <torch/library.h>

#include <optional>
#include <vector>

namespace dtorch {
namespace {

at::Tensor applyRotaryEmb(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  TORCH_CHECK(x.dim() > 0 && x.size(-1) % 2 == 0, "apply_rotary_emb: the last dimension of x, ", x.sizes(),
              ", has no two halves");
  const std::vector<at::Tensor> halves = x.tensor_split(2, -1);
  return x.mul(cos).add(at::cat({halves[1].neg(), halves[0]}, -1).mul(sin));
}

std::vector<at::Tensor> siluLinearChunk(const at::Tensor& x, const at::Tensor& weight,
                                        const std::optional<at::Tensor>& bias, std::int64_t chunks) {
  std::vector<at::Tensor> parts = at::linear(at::silu(x), weight, bias).chunk(chunks, -1);
  for (at::Tensor& part : parts) part = part.clone(at::MemoryFormat::Contiguous);
  return parts;
}

at::Tensor layerNormMulAdd(const at::Tensor& x, c10::IntArrayRef normalizedShape, const at::Tensor& factor,
                           const at::Tensor& addend, double eps) {
  return at::layer_norm(x, normalizedShape, {}, {}, eps).mul(factor).add(addend);
}

}  // namespace

void registerComposedOperators() {}  // the library below is linked with it

TORCH_LIBRARY_FRAGMENT(dtorch, library) {
  library.def("apply_rotary_emb(Tensor x, Tensor cos, Tensor sin) -> Tensor");
  library.def("silu_linear_chunk(Tensor x, Tensor weight, Tensor? bias=None, int chunks=2) -> Tensor[]");
  library.def(
      "layer_norm_mul_add(Tensor x, int[] normalized_shape, Tensor factor, Tensor addend, float eps=1e-05) -> Tensor");
  library.impl("apply_rotary_emb", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(applyRotaryEmb));
  library.impl("silu_linear_chunk", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(siluLinearChunk));
  library.impl("layer_norm_mul_add", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(layerNormMulAdd));
}

}  // namespace dtorch
