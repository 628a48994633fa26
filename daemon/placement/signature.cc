#include "daemon/placement/signature.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace dtorch {
namespace {

int dimOf(const std::vector<int>& dims, int factor) {
  const auto it = std::find(dims.begin(), dims.end(), factor);
  return it == dims.end() ? -1 : static_cast<int>(it - dims.begin());
}

std::string join(const std::vector<Placement>& placements) {
  return absl::StrJoin(placements, ", ", [](std::string* out, const Placement& p) { out->append(p.toString()); });
}

void addUnlessPresent(Signature signature, std::vector<Signature>* all) {
  if (std::find(all->begin(), all->end(), signature) == all->end()) all->push_back(std::move(signature));
}

}  // namespace

std::string Signature::toString() const { return absl::StrCat(join(inputs), " -> ", join(outputs)); }

std::vector<Signature> signaturesOf(const Factors& factors) {
  const Signature replicate{std::vector<Placement>(factors.inputs.size()),
                            std::vector<Placement>(factors.outputs.size())};
  std::vector<Signature> all = {replicate};

  for (int factor = 0; factor < factors.count; ++factor) {
    Signature signature = replicate;
    for (std::size_t i = 0; i < factors.inputs.size(); ++i) {
      if (const int dim = dimOf(factors.inputs[i], factor); dim >= 0) signature.inputs[i] = Placement::shard(dim);
    }
    std::size_t having = 0;
    for (std::size_t o = 0; o < factors.outputs.size(); ++o) {
      const int dim = dimOf(factors.outputs[o], factor);
      if (dim < 0) continue;
      signature.outputs[o] = Placement::shard(dim);
      ++having;
    }
    if (having == 0) {
      if (factors.reducedBy.empty()) continue;
      const Placement partial = Placement::partial(factors.reducedBy[0]);
      for (Placement& output : signature.outputs) output = partial;
      for (const int addend : factors.addends) signature.inputs[static_cast<std::size_t>(addend)] = partial;
    } else if (having != factors.outputs.size()) {
      continue;
    }
    addUnlessPresent(std::move(signature), &all);
  }

  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
    for (const std::vector<int>& set : factors.linear) {
      Signature signature = replicate;
      for (const int input : set) signature.inputs[static_cast<std::size_t>(input)] = Placement::partial(op);
      for (Placement& output : signature.outputs) output = Placement::partial(op);
      addUnlessPresent(std::move(signature), &all);
    }
  }

  if (factors.movesOnly) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax}) {
      Signature signature = replicate;
      signature.inputs[0] = Placement::partial(op);
      for (Placement& output : signature.outputs) output = Placement::partial(op);
      addUnlessPresent(std::move(signature), &all);
    }
  }
  return all;
}

}  // namespace dtorch
