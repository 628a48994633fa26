#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/dtype.h"

namespace dtorch {

enum class CallKind : std::uint8_t {
  kBarrier,
  kBroadcast,
  kReduce,
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kGather,
  kScatter,
};

/// How collectives combine elements: the Partial operations (same numbers as ReduceOp) and the bitwise ones.
enum class Reduction : std::uint8_t { kNone = 0, kSum, kAvg, kProduct, kMin, kMax, kBitAnd, kBitOr, kBitXor };
absl::string_view name(Reduction reduction);

/// A collective as every rank of the group must call it, in a form that is compared in shared memory: the fingerprint.
struct Call {
  static constexpr int kShownDims = 8;

  CallKind kind = CallKind::kBarrier;
  DType dtype = DType::kUnspecified;
  Reduction reduction = Reduction::kNone;
  std::int32_t root = -1;
  std::int32_t dim = -1;
  /// 0: not on behalf of an operator.
  std::uint64_t operatorNumber = 0;
  /// The shape that all ranks share; -1 where they may differ. Shown up to kShownDims, compared in full by `digest`.
  std::int32_t dims = 0;
  std::array<std::int64_t, kShownDims> shape{};
  std::uint64_t digest = 0;
  std::array<char, 64> name{};

  void setName(absl::string_view text);
  void setShape(const std::int64_t* extents, std::size_t count);
  /// Makes the fingerprint depend on further numbers that ranks must agree on.
  void mix(const std::vector<std::int64_t>& numbers);
  /// "all_reduce(sum) of float32[2, 3] for operator 17 (aten::mm)".
  std::string toString() const;

  friend bool operator==(const Call&, const Call&) = default;
};

}  // namespace dtorch
