// An operator library: operators that are not PyTorch's, for dtorchd to load (operators.libraries) and clients to call.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace {

// Each row of `x` (any shape, of at least one dimension) times its entry of `factors`.
at::Tensor scaleRows(const at::Tensor& x, const at::Tensor& factors) {
  TORCH_CHECK(x.dim() > 0 && factors.dim() == 1 && factors.size(0) == x.size(0), "scale_rows: ", x.sizes(),
              " has not as many rows as there are factors, ", factors.sizes());
  std::vector<std::int64_t> shape(static_cast<std::size_t>(x.dim()), 1);
  shape[0] = x.size(0);
  return x.mul(factors.view(shape));
}

// The sum of all rows' outer products: m k, m n -> k n.
at::Tensor rowProducts(const at::Tensor& a, const at::Tensor& b) { return a.t().mm(b); }

}  // namespace

TORCH_LIBRARY(example, library) {
  library.def("scale_rows(Tensor x, Tensor factors) -> Tensor");
  library.def("row_products(Tensor a, Tensor b) -> Tensor");
  // Composed of ATen's operators, whose Meta kernels tell the result's shape.
  library.impl("scale_rows", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(scaleRows));
  library.impl("row_products", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(rowProducts));
}

// How their tensors may be placed (docs/rules.md).
extern "C" const char* dtorch_placement_rules() {
  return "example::scale_rows: m ..., m -> m ...; linear 0|1\n"
         "example::row_products: m k, m n -> k n; m:sum; linear 0|1\n";
}
