#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtorch {

/// How the parts of a Partial tensor combine into its value. The numbers are part of the protocol.
enum class ReduceOp : std::uint8_t { kSum = 1, kAvg = 2, kProduct = 3, kMin = 4, kMax = 5 };
absl::string_view name(ReduceOp op);

/// How a tensor lies along one dimension of a mesh: Shard(dim), Replicate or Partial(op).
class Placement {
 public:
  enum class Kind : std::uint8_t { kReplicate = 1, kShard = 2, kPartial = 3 };

  constexpr Placement() = default;
  static constexpr Placement replicate() { return {}; }
  static constexpr Placement shard(int dim) { return {Kind::kShard, dim, ReduceOp::kSum}; }
  static constexpr Placement partial(ReduceOp op = ReduceOp::kSum) { return {Kind::kPartial, 0, op}; }
  /// Reads "R", "S(1)" or "P(sum)". INVALID_ARGUMENT quotes the text.
  static absl::StatusOr<Placement> parse(absl::string_view text);

  constexpr Kind kind() const { return kind_; }
  constexpr bool isReplicate() const { return kind_ == Kind::kReplicate; }
  constexpr bool isShard() const { return kind_ == Kind::kShard; }
  constexpr bool isShard(int dim) const { return isShard() && dim_ == dim; }
  constexpr bool isPartial() const { return kind_ == Kind::kPartial; }
  /// The sharded tensor dimension; meaningful for Shard only.
  constexpr int dim() const { return dim_; }
  /// Meaningful for Partial only.
  constexpr ReduceOp reduceOp() const { return op_; }
  std::string toString() const;

  friend constexpr bool operator==(const Placement&, const Placement&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const Placement& p) {
    return H::combine(std::move(h), p.kind_, p.dim_, p.op_);
  }

 private:
  constexpr Placement(Kind kind, int dim, ReduceOp op) : kind_(kind), op_(op), dim_(dim) {}
  Kind kind_ = Kind::kReplicate;
  ReduceOp op_ = ReduceOp::kSum;
  std::int32_t dim_ = 0;
};

/// One placement for each dimension of the mesh, outermost first.
using Placements = std::vector<Placement>;

/// "[S(0), R]".
std::string toString(const Placements& placements);
/// Reads "S(0) R", one placement for each mesh dimension; nothing: none. INVALID_ARGUMENT quotes the text.
absl::StatusOr<Placements> parsePlacements(absl::string_view text);
Placements allReplicate(int meshDims);
bool isAllReplicate(const Placements& placements);

/// Resolves negative shard dims against a tensor of `tensorDims` dimensions.
/// INVALID_ARGUMENT: not one placement for each mesh dimension, or a dim out of range.
absl::StatusOr<Placements> normalize(Placements placements, int meshDims, int tensorDims);

}  // namespace dtorch
