#include "comm/exchange/call.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace dtorch {
namespace {

absl::string_view kindName(CallKind kind) {
  switch (kind) {
    case CallKind::kBarrier:
      return "barrier";
    case CallKind::kBroadcast:
      return "broadcast";
    case CallKind::kReduce:
      return "reduce";
    case CallKind::kAllReduce:
      return "all_reduce";
    case CallKind::kAllGather:
      return "all_gather";
    case CallKind::kReduceScatter:
      return "reduce_scatter";
    case CallKind::kAllToAll:
      return "all_to_all";
    case CallKind::kGather:
      return "gather";
    case CallKind::kScatter:
      return "scatter";
  }
  return "?";
}

std::uint64_t combine(std::uint64_t digest, std::int64_t number) {
  // splitmix64's finaliser: https://prng.di.unimi.it/splitmix64.c
  std::uint64_t z = digest + 0x9e3779b97f4a7c15ULL + static_cast<std::uint64_t>(number);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

}  // namespace

absl::string_view name(Reduction reduction) {
  switch (reduction) {
    case Reduction::kNone:
      return "";
    case Reduction::kSum:
      return "sum";
    case Reduction::kAvg:
      return "avg";
    case Reduction::kProduct:
      return "product";
    case Reduction::kMin:
      return "min";
    case Reduction::kMax:
      return "max";
    case Reduction::kBitAnd:
      return "band";
    case Reduction::kBitOr:
      return "bor";
    case Reduction::kBitXor:
      return "bxor";
  }
  return "?";
}

void Call::setName(absl::string_view text) {
  name.fill('\0');
  std::memcpy(name.data(), text.data(), std::min(text.size(), name.size() - 1));
}

void Call::setShape(const std::int64_t* extents, std::size_t count) {
  dims = static_cast<std::int32_t>(count);
  for (std::size_t d = 0; d < count; ++d) {
    if (d < shape.size()) shape[d] = extents[d];
    digest = combine(digest, extents[d]);
  }
}

void Call::mix(const std::vector<std::int64_t>& numbers) {
  for (const std::int64_t number : numbers) digest = combine(digest, number);
}

std::string Call::toString() const {
  std::string text(kindName(kind));
  if (reduction != Reduction::kNone) absl::StrAppend(&text, "(", dtorch::name(reduction), ")");
  if (dtype != DType::kUnspecified) {
    absl::StrAppend(&text, " of ", dtorch::name(dtype), "[");
    for (int d = 0; d < std::min(dims, kShownDims); ++d) {
      const std::int64_t extent = shape[static_cast<std::size_t>(d)];
      absl::StrAppend(&text, d > 0 ? ", " : "", extent < 0 ? std::string("*") : absl::StrCat(extent));
    }
    absl::StrAppend(&text, dims > kShownDims ? ", ...]" : "]");
  }
  if (dim >= 0) absl::StrAppend(&text, " along dim ", dim);
  if (root >= 0) absl::StrAppend(&text, " with root ", root);
  if (operatorNumber != 0) absl::StrAppend(&text, " for operator ", operatorNumber);
  if (name[0] != '\0') absl::StrAppend(&text, " (", name.data(), ")");
  return text;
}

}  // namespace dtorch
