#include "dispatch/own_operators.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/library.h>

namespace dtorch {
namespace {

at::Generator generator() { return at::detail::getDefaultCPUGenerator(); }

void manualSeed(std::int64_t seed) { generator().set_current_seed(static_cast<std::uint64_t>(seed)); }

at::Tensor rngState() { return generator().get_state(); }

void setRngState(const at::Tensor& state) { generator().set_state(state); }

}  // namespace

void registerOwnOperators() {}  // the library below is linked with it

TORCH_LIBRARY(dtorch, library) {
  const std::vector<at::Tag> random = {at::Tag::nondeterministic_seeded, at::Tag::data_dependent_output};
  library.def("manual_seed(int seed) -> ()", random);
  library.def("get_rng_state() -> Tensor", random);
  library.def("set_rng_state(Tensor state) -> ()", random);
  library.impl("manual_seed", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(manualSeed));
  library.impl("get_rng_state", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(rngState));
  library.impl("set_rng_state", c10::DispatchKey::CPU, TORCH_FN(setRngState));
}

}  // namespace dtorch
