#pragma once

namespace dtorch {

/// Makes the operators of the namespace dtorch known to LibTorch's dispatcher:
/// - dtorch::manual_seed(int seed) -> (), dtorch::get_rng_state() -> Tensor, dtorch::set_rng_state(Tensor state) -> ():
///   of the session's random state on the call's mesh; a state is torch.get_rng_state()'s.
void registerOwnOperators();

}  // namespace dtorch
