#include "comm/placement/move.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/placement/convert.h"
#include "core/conversion.h"
#include "core/shard.h"
#include "dispatch/dtype.h"

namespace dtorch {
namespace {

/// The part of a tensor that a rank has: one range for each dimension.
using Box = std::vector<ShardRange>;

Box boxOf(const std::vector<std::int64_t>& shape, const DeviceMesh& mesh, const Placements& placements, Rank rank) {
  const std::vector<std::int64_t> coordinate = *mesh.coordinate(rank);
  Box box;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    box.push_back(localRange(shape[d], static_cast<int>(d), mesh, placements, coordinate));
  }
  return box;
}

Box intersection(const Box& a, const Box& b) {
  Box both;
  for (std::size_t d = 0; d < a.size(); ++d) {
    const std::int64_t begin = std::max(a[d].offset, b[d].offset);
    const std::int64_t end = std::min(a[d].offset + a[d].length, b[d].offset + b[d].length);
    both.push_back({begin, std::max<std::int64_t>(end - begin, 0)});
  }
  return both;
}

bool isEmpty(const Box& box) {
  return std::any_of(box.begin(), box.end(), [](const ShardRange& range) { return range.length == 0; });
}

std::vector<std::int64_t> sizesOf(const Box& box) {
  std::vector<std::int64_t> sizes;
  for (const ShardRange& range : box) sizes.push_back(range.length);
  return sizes;
}

/// The piece of a tensor that lies at `whole`.
at::Tensor pieceOf(at::Tensor tensor, const Box& whole, const Box& piece) {
  for (std::size_t d = 0; d < piece.size(); ++d) {
    tensor = tensor.narrow(static_cast<std::int64_t>(d), piece[d].offset - whole[d].offset, piece[d].length);
  }
  return tensor;
}

Placements withoutPartial(Placements placements) {
  std::replace_if(
      placements.begin(), placements.end(), [](const Placement& p) { return p.isPartial(); }, Placement::replicate());
  return placements;
}

/// Who sends what to whom: the same on all ranks.
class Routes {
 public:
  /// `from` and `to` have no Partial.
  Routes(const Move& move, const Placements& from, const Placements& to) : move_(move), to_(to) {
    for (const Rank rank : move.fromMesh.ranks()) {
      const Box box = boxOf(move.shape, move.fromMesh, from, rank);
      const auto same =
          std::find_if(holders_.begin(), holders_.end(), [&box](const Holders& h) { return h.box == box; });
      if (same == holders_.end()) {
        holders_.push_back({box, {rank}});
      } else {
        same->ranks.push_back(rank);
      }
    }
  }

  struct Piece {
    Rank sender = 0;
    Box senderBox;
    Box piece;
  };
  Box targetBox(Rank rank) const { return boxOf(move_.shape, move_.toMesh, to_, rank); }
  std::vector<Piece> piecesFor(Rank rank) const {
    const Box wanted = targetBox(rank);
    const auto position = static_cast<std::size_t>(
        std::find(move_.toMesh.ranks().begin(), move_.toMesh.ranks().end(), rank) - move_.toMesh.ranks().begin());
    std::vector<Piece> pieces;
    for (const Holders& holders : holders_) {
      const Box piece = intersection(wanted, holders.box);
      if (isEmpty(piece)) continue;
      const bool own = std::count(holders.ranks.begin(), holders.ranks.end(), rank) > 0;
      pieces.push_back({own ? rank : holders.ranks[position % holders.ranks.size()], holders.box, piece});
    }
    return pieces;
  }

 private:
  struct Holders {
    Box box;
    std::vector<Rank> ranks;
  };
  const Move& move_;
  const Placements& to_;
  /// Distinct boxes do not overlap, and cover the tensor.
  std::vector<Holders> holders_;
};

std::vector<Rank> allRanks(const Move& move) {
  std::vector<Rank> ranks = move.fromMesh.ranks();
  ranks.insert(ranks.end(), move.toMesh.ranks().begin(), move.toMesh.ranks().end());
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

/// This rank's part without Partial, or why it has none.
absl::StatusOr<at::Tensor> reduced(const at::Tensor& local, const Move& move, const MoveContext& context) {
  const ConvertContext how{move.fromMesh, *move.fromMesh.coordinate(context.rank), context.group, context.tag};
  const std::vector<std::int64_t> sizes = localShape(move.shape, move.fromMesh, move.from, how.coordinate);
  if (!local.defined() || local.sizes() != c10::IntArrayRef(sizes) || local.scalar_type() != toTorch(move.dtype)) {
    const absl::Status wrong = absl::InvalidArgumentError(
        absl::StrCat("rank ", context.rank, "'s part of a tensor that moves should be ", name(move.dtype), "[",
                     absl::StrJoin(sizes, ", "), "]",
                     local.defined() ? absl::StrCat(", and is ", c10::toString(local.scalar_type()), "[",
                                                    absl::StrJoin(local.sizes(), ", "), "]")
                                     : ", and is undefined"));
    failConversion(wrong, move.shape, move.from, withoutPartial(move.from), how).IgnoreError();
    return wrong;
  }
  return convert(local, move.shape, move.from, withoutPartial(move.from), how);
}

}  // namespace

absl::StatusOr<at::Tensor> moveBetween(const at::Tensor& local, const Move& move, const MoveContext& context) {
  const bool isSource = move.fromMesh.coordinate(context.rank).ok();
  const auto coordinate = move.toMesh.coordinate(context.rank);
  // Whatever is wrong with the move is wrong on all ranks.
  if (elementSize(move.dtype) == 0) return absl::InvalidArgumentError("a tensor without a dtype moves");
  const Placements from = withoutPartial(move.from);
  const Placements to = withoutPartial(move.to);
  for (const auto& steps : {planConversion(move.shape, move.fromMesh, move.from, from),
                            planConversion(move.shape, move.toMesh, to, move.to)}) {
    if (!steps.ok()) return steps.status();
  }
  absl::StatusOr<at::Tensor> part = at::Tensor();
  if (isSource) part = reduced(local, move, context);
  auto group = context.group(allRanks(move));
  if (!group.ok()) return group.status();
  if (!part.ok()) return (*group)->fail(part.status(), context.tag);

  const Routes routes(move, from, to);
  const std::vector<Rank> ranks = allRanks(move);
  absl::StatusOr<at::Tensor> result = at::Tensor();
  try {
    const at::TensorOptions options = at::TensorOptions().dtype(toTorch(move.dtype));
    std::vector<at::Tensor> sends(ranks.size(), at::empty({0}, options));
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      if (!isSource || !move.toMesh.coordinate(ranks[r]).ok()) continue;
      for (const Routes::Piece& piece : routes.piecesFor(ranks[r])) {
        if (piece.sender == context.rank) sends[r] = pieceOf(*part, piece.senderBox, piece.piece);
      }
    }
    std::vector<std::vector<std::int64_t>> shapes(ranks.size(), {0});
    const auto pieces = coordinate.ok() ? routes.piecesFor(context.rank) : std::vector<Routes::Piece>{};
    const auto indexOf = [&ranks](Rank rank) {
      return static_cast<std::size_t>(std::lower_bound(ranks.begin(), ranks.end(), rank) - ranks.begin());
    };
    for (const Routes::Piece& piece : pieces) shapes[indexOf(piece.sender)] = sizesOf(piece.piece);
    const auto received = (*group)->allToAll(sends, shapes, context.tag);
    if (!received.ok()) return received.status();
    if (!coordinate.ok()) return at::Tensor();
    const Box whole = routes.targetBox(context.rank);
    result = at::empty(sizesOf(whole), options);
    for (const Routes::Piece& piece : pieces) {
      pieceOf(*result, whole, piece.piece).copy_((*received)[indexOf(piece.sender)]);
    }
  } catch (const std::exception& e) {
    return absl::ResourceExhaustedError(absl::StrCat("moving a tensor between meshes: ", e.what()));
  }
  return convert(*result, move.shape, to, move.to, {move.toMesh, *coordinate, context.group, context.tag});
}

}  // namespace dtorch
