#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/placement/notation.h"
#include "daemon/placement/program.h"
#include "daemon/placement/rule.h"

namespace dtorch {
namespace {

using Numbers = std::vector<std::int64_t>;

// The dimensions that are reduced, and what the results look like.
struct Reduction {
  Factors factors;
  std::vector<bool> reduced;  // each dimension of the input
  std::vector<int> reducedFactors;
  Numbers dims;  // that are reduced
  bool keepDim = false;
  std::int64_t count = 1;  // elements that become one
};

absl::StatusOr<Reduction> reductionOf(const RuleCall& call) {
  Reduction r;
  const std::vector<std::int64_t>& shape = call.inputs[0]->shape;
  absl::StatusOr<std::vector<int>> dims = call.dimensions("dim", shape.size());
  if (!dims.ok()) return dims.status();
  // An empty list means all dimensions, too, but for all() and any(), which then reduce none.
  const std::string& name = call.schema.name();
  const bool all = dims->empty() && name != "aten::all" && name != "aten::any";
  r.keepDim = call.flag("keepdim");
  r.factors.inputs.emplace_back();
  std::vector<int> output;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    r.reduced.push_back(all || std::find(dims->begin(), dims->end(), static_cast<int>(d)) != dims->end());
    const int factor = r.factors.add();
    r.factors.inputs[0].push_back(factor);
    if (!r.reduced[d]) output.push_back(factor);
    if (!r.reduced[d]) continue;
    r.reducedFactors.push_back(factor);
    r.dims.push_back(static_cast<std::int64_t>(d));
    r.count *= shape[d];
    if (r.keepDim) output.push_back(Factors::kWhole);
  }
  r.factors.outputs.assign(call.outputs.size(), output);
  for (const TensorMeta* other : call.outputs) {
    if (other->shape.size() != output.size()) return absl::UnimplementedError("its results differ in shape");
  }
  return r;
}

// The other inputs of a call, such as a mask, are not covered.
absl::Status onlyOneTensor(const RuleCall& call) {
  return call.inputs.size() == 1 ? absl::OkStatus() : absl::UnimplementedError("it has more than one tensor argument");
}

// Reductions over argument "dim" (all dimensions when it is absent or None). Detail: how parts combine, or "whole": the
// reduced dimensions must not be sharded. "sum linear": Partial(sum) passes through.
absl::StatusOr<Factors> reductionFactors(const RuleCall& call, absl::string_view detail) {
  if (absl::Status one = onlyOneTensor(call); !one.ok()) return one;
  absl::StatusOr<Reduction> r = reductionOf(call);
  if (!r.ok()) return r.status();
  if (detail == "whole") {
    for (const int factor : r->reducedFactors) {
      std::replace(r->factors.inputs[0].begin(), r->factors.inputs[0].end(), factor, Factors::kWhole);
    }
    return r->factors;
  }
  ReduceOp op = ReduceOp::kSum;
  if (detail == "product") op = ReduceOp::kProduct;
  if (detail == "min" || detail == "all") op = ReduceOp::kMin;
  if (detail == "max" || detail == "any") op = ReduceOp::kMax;
  for (const int factor : r->reducedFactors) r->factors.reduced.push_back({factor, op});
  // No kernel reduces zero elements by min or max.
  if (detail == "min" || detail == "max") r->factors.neverEmpty = r->reducedFactors;
  if (detail == "sum linear") r->factors.linear = {{0}};
  return r->factors;
}

/// Steps of reductions over the same dimensions.
class ReductionProgram {
 public:
  ReductionProgram(const RuleCall& call, const Reduction& r)
      : builder(absl::MakeConstSpan(call.inputs), r.factors.inputs), call_(call), r_(r) {
    x = 0;
    const DType compute = computeType(call.outputs[0]->dtype);
    if (builder[0].meta.dtype != compute && !isComplex(builder[0].meta.dtype)) x = builder.cast(0, compute);
  }

  /// Over the reduced dimensions, which are kept; Partial(op).
  std::uint32_t reduce(std::string op, std::uint32_t number, ReduceOp by) {
    ProgramTensor result = builder[number];
    for (const std::int64_t d : r_.dims) {
      result.meta.shape[static_cast<std::size_t>(d)] = 1;
      result.dims[static_cast<std::size_t>(d)] = Factors::kWhole;
    }
    result.meta.strides = contiguousStrides(result.meta.shape);
    result.partial = {by};
    return builder.run(std::move(op), {ProgramBuilder::tensor(number), r_.dims, true}, std::move(result));
  }

  /// A pointwise kernel of two tensors, of the shape of `like`.
  std::uint32_t combine(std::string op, std::uint32_t a, std::uint32_t b, std::uint32_t like) {
    ProgramTensor result = builder[like];
    return builder.run(std::move(op), {ProgramBuilder::tensor(a), ProgramBuilder::tensor(b)}, std::move(result));
  }

  /// As the call's output `o`: without the kept dimensions, if it has none, and in its dtype.
  std::uint32_t finish(std::uint32_t number, std::size_t o = 0) {
    if (!r_.keepDim && !r_.dims.empty()) {
      ProgramTensor result = builder[number];
      result.meta.shape = call_.outputs[o]->shape;
      result.meta.strides = contiguousStrides(result.meta.shape);
      result.dims = r_.factors.outputs[o];
      number = builder.run("aten::squeeze.dims", {ProgramBuilder::tensor(number), r_.dims}, std::move(result));
    }
    return builder.cast(number, call_.outputs[o]->dtype);
  }

  ProgramBuilder builder;
  std::uint32_t x;

 private:
  const RuleCall& call_;
  const Reduction& r_;
};

// Parts of uneven shards weigh by their number of elements: the sum is divided by the whole's.
absl::StatusOr<Factors> meanFactors(const RuleCall& call, absl::string_view) {
  absl::StatusOr<Reduction> r = reductionOf(call);
  if (!r.ok()) return r.status();
  Factors factors = r->factors;
  factors.linear = {{0}};
  if (r->count == 0) return reductionFactors(call, "whole");
  factors.combined.push_back({r->reducedFactors,
                              [r = *r](const RuleCall& planned, std::int64_t) -> absl::StatusOr<Program> {
                                ReductionProgram p(planned, r);
                                std::uint32_t sum = p.reduce("aten::sum.dim_IntList", p.x, ReduceOp::kSum);
                                sum = p.builder.map("aten::div.Scalar", sum, {static_cast<double>(r.count)});
                                return p.builder.finish({p.finish(sum)});
                              },
                              {ReduceOp::kSum}});
  return factors;
}

// In two passes, as is exact: the mean, then the squares of what differs from it. Detail: which results, "var", "std",
// "var mean", "std mean".
absl::StatusOr<Factors> varianceFactors(const RuleCall& call, absl::string_view detail) {
  absl::StatusOr<Reduction> r = reductionOf(call);
  if (!r.ok()) return r.status();
  double correction = 1;
  if (const Value* given = call.argument("correction"); given != nullptr) {
    if (const auto* whole = given->as<std::int64_t>()) correction = static_cast<double>(*whole);
    if (const auto* real = given->as<double>()) correction = *real;
  }
  if (const Value* unbiased = call.argument("unbiased"); unbiased != nullptr)
    correction = call.flag("unbiased") ? 1 : 0;
  Factors factors = r->factors;
  const double divisor = std::max(0.0, static_cast<double>(r->count) - correction);
  if (r->count == 0 || isComplex(call.inputs[0]->dtype)) return reductionFactors(call, "whole");
  const bool root = detail.substr(0, 3) == "std";
  factors.combined.push_back(
      {r->reducedFactors,
       [r = *r, divisor, root](const RuleCall& planned, std::int64_t) -> absl::StatusOr<Program> {
         ReductionProgram p(planned, r);
         std::uint32_t mean = p.builder.reduced(p.reduce("aten::sum.dim_IntList", p.x, ReduceOp::kSum));
         mean = p.builder.map("aten::div.Scalar", mean, {static_cast<double>(r.count)});
         const std::uint32_t apart = p.builder.map("aten::square", p.combine("aten::sub.Tensor", p.x, mean, p.x));
         std::uint32_t variance = p.builder.reduced(p.reduce("aten::sum.dim_IntList", apart, ReduceOp::kSum));
         variance = p.builder.map("aten::div.Scalar", variance, {divisor});
         if (root) variance = p.builder.map("aten::sqrt", variance);
         std::vector<std::uint32_t> outputs = {p.finish(variance)};
         if (planned.outputs.size() > 1) outputs.push_back(p.finish(mean, 1));
         return p.builder.finish(std::move(outputs));
       },
       {}});
  return factors;
}

// The greatest is taken away before exp(), and added again after log().
absl::StatusOr<Factors> logSumExpFactors(const RuleCall& call, absl::string_view) {
  absl::StatusOr<Reduction> r = reductionOf(call);
  if (!r.ok()) return r.status();
  if (isComplex(call.inputs[0]->dtype)) return reductionFactors(call, "whole");
  Factors factors = r->factors;
  factors.neverEmpty = r->reducedFactors;
  factors.combined.push_back(
      {r->reducedFactors,
       [r = *r](const RuleCall& planned, std::int64_t) -> absl::StatusOr<Program> {
         ReductionProgram p(planned, r);
         const std::uint32_t greatest = p.builder.reduced(p.reduce("aten::amax", p.x, ReduceOp::kMax));
         // Infinities stay what they are: inf - inf would be NaN.
         const std::uint32_t finite = p.builder.map("aten::nan_to_num", greatest, {Value(), 0.0, 0.0});
         const std::uint32_t powers = p.builder.map("aten::exp", p.combine("aten::sub.Tensor", p.x, finite, p.x));
         const std::uint32_t sum = p.builder.reduced(p.reduce("aten::sum.dim_IntList", powers, ReduceOp::kSum));
         const std::uint32_t logarithm = p.builder.map("aten::log", sum);
         return p.builder.finish({p.finish(p.combine("aten::add.Tensor", logarithm, finite, logarithm))});
       },
       {}});
  return factors;
}

// Norms over argument "dim"; "ord" or "p" says which.
absl::StatusOr<Factors> normFactors(const RuleCall& call, absl::string_view detail) {
  absl::StatusOr<Reduction> r = reductionOf(call);
  if (!r.ok()) return r.status();
  double order = 2;
  for (const char* name : {"ord", "p"}) {
    const Value* given = call.argument(name);
    if (given == nullptr) continue;
    if (const auto* whole = given->as<std::int64_t>()) order = static_cast<double>(*whole);
    if (const auto* real = given->as<double>()) order = *real;
  }
  Factors factors = r->factors;
  if (isComplex(call.inputs[0]->dtype) || order == 0 || detail == "whole") return reductionFactors(call, "whole");
  if (std::isinf(order)) factors.neverEmpty = r->reducedFactors;
  factors.combined.push_back(
      {r->reducedFactors,
       [r = *r, order](const RuleCall& planned, std::int64_t) -> absl::StatusOr<Program> {
         ReductionProgram p(planned, r);
         const std::uint32_t sizes = p.builder.map("aten::abs", p.x);
         if (std::isinf(order)) {
           const bool least = order < 0;
           return p.builder.finish({p.finish(p.builder.reduced(
               p.reduce(least ? "aten::amin" : "aten::amax", sizes, least ? ReduceOp::kMin : ReduceOp::kMax)))});
         }
         const std::uint32_t powers = p.builder.map("aten::pow.Tensor_Scalar", sizes, {order});
         const std::uint32_t sum = p.builder.reduced(p.reduce("aten::sum.dim_IntList", powers, ReduceOp::kSum));
         return p.builder.finish({p.finish(p.builder.map("aten::pow.Tensor_Scalar", sum, {1 / order}))});
       },
       {}});
  return factors;
}

// The greatest or least and where it is. Each rank finds its own, with its index in the whole; the first of the best is
// then picked from all ranks' finds, which lie along the reduced dimension. Detail: the kernel, and which results:
// "max both", "min both", "max index", "min index".
absl::StatusOr<Factors> extremeFactors(const RuleCall& call, absl::string_view detail) {
  const std::size_t dims = call.inputs[0]->shape.size();
  if (const Value* dim = call.argument("dim"); dim == nullptr || dim->isNone()) {
    if (call.outputs.size() == 1 && detail.substr(4) == "both") return reductionFactors(call, detail.substr(0, 3));
    return reductionFactors(call, "whole");
  }
  absl::StatusOr<int> dim = call.dimension("dim", dims);
  if (!dim.ok()) return dim.status();
  absl::StatusOr<Reduction> r = reductionOf(call);
  if (!r.ok()) return r.status();
  const bool indexOnly = detail.substr(4) == "index";
  Factors factors = r->factors;
  factors.neverEmpty = r->reducedFactors;
  const std::string kernel = absl::StrCat("aten::", detail.substr(0, 3), ".dim");
  factors.combined.push_back(
      {r->reducedFactors,
       [r = *r, dim = *dim, kernel, indexOnly](const RuleCall& planned, std::int64_t parts) -> absl::StatusOr<Program> {
         ProgramBuilder builder(absl::MakeConstSpan(planned.inputs), r.factors.inputs);
         const auto along = static_cast<std::size_t>(dim);
         const auto at = [&](std::int64_t extent, DType dtype, int factor) {
           ProgramTensor tensor = builder[0];
           tensor.meta.dtype = dtype;
           tensor.meta.shape[along] = extent;
           tensor.meta.strides = contiguousStrides(tensor.meta.shape);
           tensor.dims[along] = factor;
           return tensor;
         };
         const DType dtype = planned.inputs[0]->dtype;
         const int factor = r.factors.inputs[0][along];
         // One find a rank.
         const std::uint32_t own = builder.runAll(kernel, {ProgramBuilder::tensor(0), std::int64_t{dim}, true},
                                                  {at(parts, dtype, factor), at(parts, DType::kInt64, factor)});
         const std::uint32_t global =
             builder.run("aten::add.Scalar", {ProgramBuilder::tensor(own + 1), std::int64_t{0}},
                         at(parts, DType::kInt64, factor), {{1, 0, dim, LocalRange::Part::kOffset}});
         const std::uint32_t values = builder.gathered(own, along);
         const std::uint32_t indices = builder.gathered(global, along);
         const std::uint32_t best = builder.runAll(kernel, {ProgramBuilder::tensor(values), std::int64_t{dim}, true},
                                                   {at(1, dtype, -1), at(1, DType::kInt64, -1)});
         const std::uint32_t index = builder.run(
             "aten::gather", {ProgramBuilder::tensor(indices), std::int64_t{dim}, ProgramBuilder::tensor(best + 1)},
             at(1, DType::kInt64, -1));
         std::vector<std::uint32_t> outputs = {best, index};
         if (indexOnly) outputs = {index};
         if (!r.keepDim) {
           for (std::size_t o = 0; o < outputs.size(); ++o) {
             outputs[o] = builder.run("aten::squeeze.dim", {ProgramBuilder::tensor(outputs[o]), std::int64_t{dim}},
                                      {*planned.outputs[o], r.factors.outputs[o], {}});
           }
         }
         return builder.finish(std::move(outputs));
       },
       {}});
  return factors;
}

constexpr std::array kRules = std::to_array<Rule>({
    {"aten::sum", reductionFactors, "sum linear"},
    {"aten::nansum", reductionFactors, "sum"},
    {"aten::count_nonzero", reductionFactors, "sum"},
    {"aten::prod", reductionFactors, "product"},
    {"aten::mean", meanFactors, ""},
    {"aten::amax", reductionFactors, "max"},
    {"aten::amin", reductionFactors, "min"},
    {"aten::aminmax", reductionFactors, "whole"},
    {"aten::max", extremeFactors, "max both"},
    {"aten::min", extremeFactors, "min both"},
    {"aten::argmax", extremeFactors, "max index"},
    {"aten::argmin", extremeFactors, "min index"},
    {"aten::all", reductionFactors, "all"},
    {"aten::any", reductionFactors, "any"},
    {"aten::var", varianceFactors, "var"},
    {"aten::std", varianceFactors, "std"},
    {"aten::var_mean", varianceFactors, "var mean"},
    {"aten::std_mean", varianceFactors, "std mean"},
    {"aten::logsumexp", logSumExpFactors, ""},
    {"aten::special_logsumexp", logSumExpFactors, ""},
    {"aten::linalg_vector_norm", normFactors, ""},
    {"aten::norm", normFactors, ""},
    {"aten::frobenius_norm", normFactors, ""},
    {"aten::nanmean", reductionFactors, "whole"},
    {"aten::median", reductionFactors, "whole"},
    {"aten::nanmedian", reductionFactors, "whole"},
    {"aten::mode", reductionFactors, "whole"},
    {"aten::kthvalue", reductionFactors, "whole"},
});

}  // namespace

absl::Span<const Rule> reductionRules() { return kRules; }

}  // namespace dtorch
