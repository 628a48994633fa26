#pragma once

namespace dtorch {

/// Makes known to LibTorch's dispatcher what transformers compute again and again, each composed of ATen's operators:
/// - dtorch::apply_rotary_emb(Tensor x, Tensor cos, Tensor sin) -> Tensor: with h half of x's last extent,
///   x[i] cos[i] - x[i + h] sin[i] at i < h, and x[i] cos[i] + x[i - h] sin[i] at i >= h. The three broadcast together.
/// - dtorch::silu_linear_chunk(Tensor x, Tensor weight, Tensor? bias=None, int chunks=2) -> Tensor[]: silu(x), of shape
///   (..., k), times weight (n, k), plus bias (n), in chunks of the last dimension, each with memory of its own.
/// - dtorch::layer_norm_mul_add(Tensor x, int[] normalized_shape, Tensor factor, Tensor addend, float eps=1e-05) ->
///   Tensor: x normalised over its last dimensions, times factor, plus addend; the three broadcast together.
/// Errors: INVALID_ARGUMENT where x's last extent is odd, and what ATen's operators raise.
void registerComposedOperators();

}  // namespace dtorch
