#pragma once

namespace dtorch {

/// Makes the operators of the namespace dtorch known to LibTorch's dispatcher:
/// - dtorch::manual_seed(int seed) -> (), dtorch::get_rng_state() -> Tensor, dtorch::set_rng_state(Tensor state) -> ():
///   of the session's random state on the call's mesh; a state is torch.get_rng_state()'s.
/// - dtorch::local_indices(Tensor indices, int offset, int length, int size) -> (Tensor, Tensor),
///   dtorch::rows_or_zeros(Tensor self, int dim, Tensor indices, Tensor elsewhere) -> Tensor: steps of placement
///   programs, for tables that are split.
void registerOwnOperators();

}  // namespace dtorch
