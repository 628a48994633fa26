// Which operators torch.autocast("dtorch") runs in the lower precision, which in float32, and which promote: PyTorch's
// own lists.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace {

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) { library.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define DTORCH_LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define DTORCH_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define DTORCH_SET_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define DTORCH_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(DTORCH_LOWER)
  AT_FORALL_FP32(DTORCH_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(DTORCH_SET_DTYPE)
  AT_FORALL_PROMOTE(DTORCH_PROMOTE)
#undef DTORCH_LOWER
#undef DTORCH_FP32
#undef DTORCH_SET_DTYPE
#undef DTORCH_PROMOTE
}

}  // namespace
