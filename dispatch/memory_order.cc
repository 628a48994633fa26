#include "dispatch/memory_order.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cstddef>

namespace dtorch {
namespace {

// Found by expanding and permuting one argument after the other on LibTorch 2.11.
constexpr std::array<absl::string_view, 10> kContiguousOnly = {
    "aten::native_layer_norm_backward",
    "aten::native_group_norm_backward",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    "aten::_weight_norm_interface",
    "aten::_weight_norm_interface_backward",
    "aten::rrelu_with_noise",
    "aten::rrelu_with_noise_",
    "aten::rrelu_with_noise_functional",
    "aten::rrelu_with_noise_backward",
};
constexpr std::array<absl::string_view, 6> kDenseOnly = {
    "aten::native_group_norm",
    "aten::native_batch_norm_backward",
    "aten::_embedding_bag",
    "aten::_embedding_bag_forward_only",
    "aten::_embedding_bag_dense_backward",
    "aten::_embedding_bag_per_sample_weights_backward",
};

template <std::size_t N>
bool has(const std::array<absl::string_view, N>& names, absl::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

MemoryOrder memoryOrderOf(absl::string_view name) {
  if (has(kContiguousOnly, name)) return MemoryOrder::kContiguous;
  return has(kDenseOnly, name) ? MemoryOrder::kDense : MemoryOrder::kAny;
}

bool lies(const at::Tensor& tensor, MemoryOrder order) {
  if (order == MemoryOrder::kAny || !tensor.defined() || tensor.is_meta()) return true;
  return order == MemoryOrder::kDense ? tensor.is_non_overlapping_and_dense() : tensor.is_contiguous();
}

}  // namespace dtorch
