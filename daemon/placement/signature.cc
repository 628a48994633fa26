#include "daemon/placement/signature.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace dtorch {
namespace {

constexpr ReduceOp kAllReduceOps[] = {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct, ReduceOp::kMin,
                                      ReduceOp::kMax};

int dimOf(const std::vector<int>& dims, int factor) {
  const auto it = std::find(dims.begin(), dims.end(), factor);
  return it == dims.end() ? -1 : static_cast<int>(it - dims.begin());
}

std::string join(const std::vector<Placement>& placements) {
  return absl::StrJoin(placements, ", ", [](std::string* out, const Placement& p) { out->append(p.toString()); });
}

void addUnlessPresent(Signature signature, std::vector<Signature>* all) {
  const bool present =
      std::any_of(all->begin(), all->end(), [&](const Signature& other) { return other.samePlacements(signature); });
  if (!present) all->push_back(std::move(signature));
}

Signature replicate(const Factors& factors) {
  return {std::vector<Placement>(factors.inputs.size()), std::vector<Placement>(factors.outputs.size()), -1};
}

bool hasNothing(const Factors& factors, std::size_t output) {
  return std::find(factors.nothing.begin(), factors.nothing.end(), static_cast<int>(output)) != factors.nothing.end();
}

// What outputs without `factor` are where it is sharded; nullopt: it must not be.
std::optional<Placement> lacking(const Factors& factors, int factor) {
  for (const Factors::Combined& combined : factors.combined) {
    if (dimOf(combined.factors, factor) < 0) continue;
    return combined.partial.empty() ? Placement::replicate() : Placement::partial(combined.partial[0]);
  }
  for (const Factors::Reduced& reduced : factors.reduced) {
    if (reduced.factor == factor) return Placement::partial(reduced.by);
  }
  return std::nullopt;
}

std::optional<Signature> sharded(const Factors& factors, int factor) {
  Signature signature = replicate(factors);
  signature.factor = factor;
  bool had = false;
  for (std::size_t i = 0; i < factors.inputs.size(); ++i) {
    const int dim = dimOf(factors.inputs[i], factor);
    if (dim < 0) continue;
    signature.inputs[i] = Placement::shard(dim);
    had = true;
  }
  if (!had) return std::nullopt;
  const std::optional<Placement> without = lacking(factors, factor);
  bool reduces = false;
  for (std::size_t o = 0; o < factors.outputs.size(); ++o) {
    if (const int dim = dimOf(factors.outputs[o], factor); dim >= 0) {
      signature.outputs[o] = Placement::shard(dim);
    } else if (hasNothing(factors, o)) {
      continue;
    } else if (without) {
      signature.outputs[o] = *without;
      reduces = true;
    } else {
      return std::nullopt;
    }
  }
  if (reduces && without->isPartial()) {
    for (const int addend : factors.addends) signature.inputs[static_cast<std::size_t>(addend)] = *without;
  }
  return signature;
}

Signature partial(const Factors& factors, const std::vector<int>& inputs, ReduceOp op) {
  Signature signature = replicate(factors);
  for (const int input : inputs) signature.inputs[static_cast<std::size_t>(input)] = Placement::partial(op);
  for (std::size_t o = 0; o < signature.outputs.size(); ++o) {
    if (!hasNothing(factors, o)) signature.outputs[o] = Placement::partial(op);
  }
  return signature;
}

}  // namespace

std::string Signature::toString() const { return absl::StrCat(join(inputs), " -> ", join(outputs)); }

std::vector<Signature> signaturesOf(const Factors& factors) {
  std::vector<Signature> all = {replicate(factors)};
  for (int factor = 0; factor < factors.count; ++factor) {
    if (std::optional<Signature> signature = sharded(factors, factor)) addUnlessPresent(*std::move(signature), &all);
  }
  for (const std::vector<int>& set : factors.linear) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) addUnlessPresent(partial(factors, set, op), &all);
  }
  for (const std::vector<int>& set : factors.moved) {
    for (const ReduceOp op : kAllReduceOps) addUnlessPresent(partial(factors, set, op), &all);
  }
  for (const int input : factors.unread) {
    for (const ReduceOp op : kAllReduceOps) {
      Signature signature = replicate(factors);
      signature.inputs[static_cast<std::size_t>(input)] = Placement::partial(op);
      addUnlessPresent(std::move(signature), &all);
    }
  }
  return all;
}

}  // namespace dtorch
