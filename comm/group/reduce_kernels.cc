#include "comm/group/reduce_kernels.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <c10/util/complex.h>

#include <algorithm>
#include <array>
#include <type_traits>

#include "absl/strings/str_cat.h"

namespace dtorch {
namespace {

template <typename T>
inline constexpr bool kIsComplex = false;
template <typename T>
inline constexpr bool kIsComplex<c10::complex<T>> = true;
template <typename T>
inline constexpr bool kIsInteger = std::is_integral_v<T>;  // bool too

/// What elements of T accumulate in. Integers wrap, so they are unsigned meanwhile.
template <typename T>
struct AccumulatorOf {
  using type = T;
};
template <>
struct AccumulatorOf<c10::Half> {
  using type = float;
};
template <>
struct AccumulatorOf<c10::BFloat16> {
  using type = float;
};
template <>
struct AccumulatorOf<c10::complex<c10::Half>> {
  using type = c10::complex<float>;
};
template <typename T>
requires(std::is_integral_v<T> && !std::is_same_v<T, bool>) struct AccumulatorOf<T> {
  // Products of narrower unsigned types would be promoted to int, and overflow it.
  using type = std::conditional_t<(sizeof(T) < 4), std::uint32_t, std::make_unsigned_t<T>>;
};

template <Reduction kReduction, typename T, typename A>
A combine(A a, A b) {
  constexpr bool kBool = std::is_same_v<T, bool>;
  if constexpr (kReduction == Reduction::kSum || kReduction == Reduction::kAvg) {
    if constexpr (kBool)
      return a || b;
    else
      return a + b;
  } else if constexpr (kReduction == Reduction::kProduct) {
    if constexpr (kBool)
      return a && b;
    else
      return a * b;
  } else if constexpr (kReduction == Reduction::kMax || kReduction == Reduction::kMin) {
    constexpr bool kMax = kReduction == Reduction::kMax;
    if constexpr (kIsInteger<T>) {
      const T x = static_cast<T>(a);
      const T y = static_cast<T>(b);
      return static_cast<A>(kMax ? std::max(x, y) : std::min(x, y));
    } else {
      return (kMax ? b > a : b < a) || b != b ? b : a;
    }
  } else if constexpr (kReduction == Reduction::kBitAnd) {
    return static_cast<A>(a & b);
  } else if constexpr (kReduction == Reduction::kBitOr) {
    return static_cast<A>(a | b);
  } else {
    return static_cast<A>(a ^ b);
  }
}

template <Reduction kReduction, typename T>
void reduce(std::byte* out, const std::byte* const* inputs, int count, std::size_t elements) {
  using A = typename AccumulatorOf<T>::type;
  constexpr std::size_t kBlock = 512;  // accumulators stay in the first-level cache
  std::array<A, kBlock> sums;
  for (std::size_t begin = 0; begin < elements; begin += kBlock) {
    const std::size_t n = std::min(kBlock, elements - begin);
    const T* first = reinterpret_cast<const T*>(inputs[0]) + begin;
    for (std::size_t i = 0; i < n; ++i) sums[i] = static_cast<A>(first[i]);
    for (int r = 1; r < count; ++r) {
      const T* next = reinterpret_cast<const T*>(inputs[r]) + begin;
      for (std::size_t i = 0; i < n; ++i) sums[i] = combine<kReduction, T, A>(sums[i], static_cast<A>(next[i]));
    }
    T* to = reinterpret_cast<T*>(out) + begin;
    for (std::size_t i = 0; i < n; ++i) {
      if constexpr (kReduction == Reduction::kAvg) {
        to[i] = static_cast<T>(sums[i] / static_cast<A>(static_cast<float>(count)));
      } else {
        to[i] = static_cast<T>(sums[i]);
      }
    }
  }
}

template <typename T>
ReduceKernel kernelOf(Reduction reduction) {
  const auto kernel = [](auto run) { return ReduceKernel{run, sizeof(T)}; };
  switch (reduction) {
    case Reduction::kSum:
      return kernel(reduce<Reduction::kSum, T>);
    case Reduction::kProduct:
      return kernel(reduce<Reduction::kProduct, T>);
    case Reduction::kAvg:
      if constexpr (!kIsInteger<T>) return kernel(reduce<Reduction::kAvg, T>);
      break;
    case Reduction::kMin:
      if constexpr (!kIsComplex<T>) return kernel(reduce<Reduction::kMin, T>);
      break;
    case Reduction::kMax:
      if constexpr (!kIsComplex<T>) return kernel(reduce<Reduction::kMax, T>);
      break;
    case Reduction::kBitAnd:
      if constexpr (kIsInteger<T>) return kernel(reduce<Reduction::kBitAnd, T>);
      break;
    case Reduction::kBitOr:
      if constexpr (kIsInteger<T>) return kernel(reduce<Reduction::kBitOr, T>);
      break;
    case Reduction::kBitXor:
      if constexpr (kIsInteger<T>) return kernel(reduce<Reduction::kBitXor, T>);
      break;
    case Reduction::kNone:
      break;
  }
  return {};
}

ReduceKernel find(DType dtype, Reduction reduction) {
  switch (dtype) {
    case DType::kBool:
      return kernelOf<bool>(reduction);
    case DType::kUInt8:
      return kernelOf<std::uint8_t>(reduction);
    case DType::kInt8:
      return kernelOf<std::int8_t>(reduction);
    case DType::kUInt16:
      return kernelOf<std::uint16_t>(reduction);
    case DType::kInt16:
      return kernelOf<std::int16_t>(reduction);
    case DType::kUInt32:
      return kernelOf<std::uint32_t>(reduction);
    case DType::kInt32:
      return kernelOf<std::int32_t>(reduction);
    case DType::kUInt64:
      return kernelOf<std::uint64_t>(reduction);
    case DType::kInt64:
      return kernelOf<std::int64_t>(reduction);
    case DType::kFloat16:
      return kernelOf<c10::Half>(reduction);
    case DType::kBFloat16:
      return kernelOf<c10::BFloat16>(reduction);
    case DType::kFloat32:
      return kernelOf<float>(reduction);
    case DType::kFloat64:
      return kernelOf<double>(reduction);
    case DType::kComplex32:
      return kernelOf<c10::complex<c10::Half>>(reduction);
    case DType::kComplex64:
      return kernelOf<c10::complex<float>>(reduction);
    case DType::kComplex128:
      return kernelOf<c10::complex<double>>(reduction);
    default:
      return {};
  }
}

}  // namespace

absl::StatusOr<ReduceKernel> reduceKernel(DType dtype, Reduction reduction) {
  const ReduceKernel kernel = find(dtype, reduction);
  if (kernel.run != nullptr) return kernel;
  return absl::InvalidArgumentError(
      absl::StrCat("tensors of dtype ", name(dtype), " cannot be reduced by ", name(reduction)));
}

}  // namespace dtorch
