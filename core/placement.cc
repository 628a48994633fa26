#include "core/placement.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace dtorch {
namespace {

constexpr std::array<std::pair<ReduceOp, absl::string_view>, 5> kReduceOps = {{
    {ReduceOp::kSum, "sum"},
    {ReduceOp::kAvg, "avg"},
    {ReduceOp::kProduct, "product"},
    {ReduceOp::kMin, "min"},
    {ReduceOp::kMax, "max"},
}};

}  // namespace

absl::string_view name(ReduceOp op) {
  for (const auto& [value, text] : kReduceOps) {
    if (value == op) return text;
  }
  return "unknown";
}

absl::StatusOr<Placement> Placement::parse(absl::string_view text) {
  absl::string_view rest = text;
  if (text == "R") return replicate();
  if (absl::ConsumePrefix(&rest, "S(") && absl::ConsumeSuffix(&rest, ")")) {
    int dim = 0;
    if (absl::SimpleAtoi(rest, &dim)) return shard(dim);
  }
  rest = text;
  if (absl::ConsumePrefix(&rest, "P(") && absl::ConsumeSuffix(&rest, ")")) {
    for (const auto& [op, opName] : kReduceOps) {
      if (opName == rest) return partial(op);
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("placement '", text, "' is none of R, S(dim), P(sum|avg|product|min|max)"));
}

std::string Placement::toString() const {
  switch (kind_) {
    case Kind::kReplicate:
      return "R";
    case Kind::kShard:
      return absl::StrCat("S(", dim_, ")");
    case Kind::kPartial:
      return absl::StrCat("P(", name(op_), ")");
  }
  return "?";
}

std::string toString(const Placements& placements) {
  return absl::StrCat(
      "[",
      absl::StrJoin(placements, ", ", [](std::string* out, const Placement& p) { absl::StrAppend(out, p.toString()); }),
      "]");
}

absl::StatusOr<Placements> parsePlacements(absl::string_view text) {
  Placements placements;
  for (const absl::string_view each : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    const absl::StatusOr<Placement> placement = Placement::parse(each);
    if (!placement.ok()) return placement.status();
    placements.push_back(*placement);
  }
  return placements;
}

Placements allReplicate(int meshDims) { return Placements(static_cast<std::size_t>(meshDims)); }

bool isAllReplicate(const Placements& placements) {
  return std::all_of(placements.begin(), placements.end(), [](const Placement& p) { return p.isReplicate(); });
}

absl::StatusOr<Placements> normalize(Placements placements, int meshDims, int tensorDims) {
  if (static_cast<int>(placements.size()) != meshDims) {
    return absl::InvalidArgumentError(absl::StrCat("placements ", toString(placements), " name ", placements.size(),
                                                   " mesh dimensions, the mesh has ", meshDims));
  }
  for (Placement& placement : placements) {
    if (!placement.isShard()) continue;
    const int dim = placement.dim() < 0 ? placement.dim() + tensorDims : placement.dim();
    if (dim < 0 || dim >= tensorDims) {
      return absl::InvalidArgumentError(absl::StrCat("placement ", placement.toString(),
                                                     " is out of range for a tensor of ", tensorDims, " dimensions"));
    }
    placement = Placement::shard(dim);
  }
  return placements;
}

}  // namespace dtorch
