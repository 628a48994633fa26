#pragma once

namespace dtorch {

/// Makes known to LibTorch's dispatcher what transformers compute again and again, each composed of ATen's operators:
/// - dtorch::apply_rotary_emb(Tensor x, Tensor cos, Tensor sin) -> Tensor: x (..., d), d even, with each pair (i, i +
/// d/2)
///   of its last dimension turned; cos and sin (..., d) broadcast over the other dimensions.
/// - dtorch::silu_linear_chunk(Tensor x, Tensor weight, Tensor? bias=None, int chunks=2) -> Tensor[]: silu(x) (..., k)
///   times weight (n, k), plus bias (n), in chunks of the last dimension, each with memory of its own.
/// - dtorch::layer_norm_mul_add(Tensor x, int[] normalized_shape, Tensor factor, Tensor addend, float eps=1e-05) ->
///   Tensor: x normalised over its last dimensions, times factor, plus addend, which both broadcast to x.
/// Errors: as ATen's operators raise.
void registerComposedOperators();

}  // namespace dtorch
