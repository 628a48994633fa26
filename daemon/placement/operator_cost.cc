#include "daemon/placement/operator_cost.h"

#include <algorithm>
#include <array>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace dtorch {
namespace {

// Of one rank on CPU; only their ratios matter for a choice.
constexpr double kFlopsPerSecond = 50e9;
constexpr double kMemoryBytesPerSecond = 10e9;
constexpr double kLinkBytesPerSecond = 4e9;
constexpr double kCollectiveSeconds = 30e-6;

// Whose terms are the indices of all their factors and whole dimensions together.
constexpr std::array<absl::string_view, 3> kProducts = {"convolution", "conv", "attention"};

double product(const std::vector<std::int64_t>& shape) {
  double result = 1;
  for (const std::int64_t extent : shape) result *= static_cast<double>(extent);
  return result;
}

}  // namespace

OperatorCost OperatorCost::of(const RuleCall& call, const Factors& factors) {
  OperatorCost cost;
  std::vector<double> extents(static_cast<std::size_t>(factors.count), 1);
  double elements = 0;
  const auto look = [&](const TensorMeta& meta, const std::vector<int>& dims) {
    cost.bytes += static_cast<double>(meta.bytes());
    elements += product(meta.shape);
    for (std::size_t d = 0; d < dims.size() && d < meta.shape.size(); ++d) {
      if (dims[d] >= 0) extents[static_cast<std::size_t>(dims[d])] = static_cast<double>(meta.shape[d]);
    }
  };
  for (std::size_t i = 0; i < call.inputs.size(); ++i) look(*call.inputs[i], factors.inputs[i]);
  for (std::size_t o = 0; o < call.outputs.size(); ++o) look(*call.outputs[o], factors.outputs[o]);
  cost.flops = elements;
  const bool convolves = std::any_of(kProducts.begin(), kProducts.end(), [&](absl::string_view word) {
    return absl::StrContains(call.schema.name(), word);
  });
  if (convolves && call.inputs.size() > 1 && !call.outputs.empty()) {
    // Each element of the result takes a term for each element of a filter, or of a row of keys.
    const double filters =
        static_cast<double>(std::max<std::int64_t>(1, call.inputs[1]->shape.empty() ? 1 : call.inputs[1]->shape[0]));
    cost.flops = 2 * product(call.outputs[0]->shape) * product(call.inputs[1]->shape) / filters;
  } else if (!factors.reduced.empty() && call.inputs.size() > 1) {
    double terms = 2;
    for (const double extent : extents) terms *= extent;
    cost.flops = std::max(cost.flops, terms);
  }
  return cost;
}

double OperatorCost::seconds() const { return std::max(flops / kFlopsPerSecond, bytes / kMemoryBytesPerSecond); }

double transferSeconds(double bytes, int collectives) {
  return bytes / kLinkBytesPerSecond + collectives * kCollectiveSeconds;
}

}  // namespace dtorch
