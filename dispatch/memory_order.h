#pragma once
#include <cstdint>

#include "absl/strings/string_view.h"

namespace at {
class Tensor;
}

namespace dtorch {

/// How a CPU kernel of LibTorch's needs the elements of its tensors to lie, which it does not ask: as many numbers as
/// there are elements, one after the other (dense, in any order of dimensions), or in the order of their indices.
/// With others it reads, or writes, past their memory, or takes one element for another.
enum class MemoryOrder : std::uint8_t { kAny, kDense, kContiguous };

/// Of the operator `name`, without overload.
MemoryOrder memoryOrderOf(absl::string_view name);

/// Whether `tensor` lies so.
bool lies(const at::Tensor& tensor, MemoryOrder order);

}  // namespace dtorch
