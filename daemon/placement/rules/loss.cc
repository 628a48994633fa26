#include <array>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/placement/notation.h"
#include "daemon/placement/program.h"
#include "daemon/placement/rule.h"
#include "dispatch/prepared_call.h"

namespace dtorch {
namespace {

// at::Reduction.
constexpr std::int64_t kNone = 0;
constexpr std::int64_t kMean = 1;
constexpr std::int64_t kSum = 2;

// The call's arguments, for a program whose first tensors are the call's inputs, with another reduction.
std::vector<Value> withReduction(const RuleCall& call, std::int64_t reduction) {
  std::vector<Value> arguments = call.arguments;
  arguments[static_cast<std::size_t>(call.position("reduction"))] = reduction;
  return arguments;
}

// A sum of many elements overflows where their mean does not, and a share of the gradient underflows.
bool isHalf(const TensorMeta& meta) { return meta.dtype == DType::kFloat16 || meta.dtype == DType::kBFloat16; }

// One loss an element, then none, their sum or their mean. A mean is the sum over the number of elements of the whole.
// Detail: the inputs of one element, as a notation; it has one factor for each of their dimensions.
absl::StatusOr<Factors> elementwiseLossFactors(const RuleCall& call, absl::string_view detail) {
  const std::int64_t reduction = call.integer("reduction", kMean);
  if (reduction != kNone && nameOf(call.schema.operator_name()) == "aten::binary_cross_entropy.out") {
    return absl::UnimplementedError("PyTorch's out= form gives another value than the functional one");
  }
  for (const TensorMeta* input : call.inputs) {
    if (reduction != kNone && input->shape != call.inputs[0]->shape) {
      return absl::UnimplementedError("its inputs differ in shape");
    }
  }
  const std::string inputs(detail.empty() ? "..., ..., ..., ..." : detail);
  absl::StatusOr<Factors> factors =
      notationFactors(call, absl::StrCat(inputs, " -> ", reduction == kNone ? "..." : "*"));
  if (!factors.ok() || reduction == kNone) return factors;
  if (reduction == kSum) {
    for (const int factor : factors->all()) factors->reduced.push_back({factor, ReduceOp::kSum});
    return factors;
  }
  const double count = static_cast<double>(call.inputs[0]->numel());
  if (count == 0 || isHalf(*call.outputs[0])) return notationFactors(call, "*, *, *, * -> *");
  factors->combined.push_back(
      {factors->all(),
       [dims = factors->inputs, count](const RuleCall& planned, std::int64_t) -> absl::StatusOr<Program> {
         ProgramBuilder builder(absl::MakeConstSpan(planned.inputs), dims);
         const std::uint32_t sum = builder.run(nameOf(planned.schema.operator_name()), withReduction(planned, kSum),
                                               {*planned.outputs[0], {}, {ReduceOp::kSum}});
         return builder.finish({builder.map("aten::div.Scalar", sum, {count})});
       },
       {ReduceOp::kSum}});
  return factors;
}

// The gradient of such a loss: grad_output has no dimension unless nothing is reduced. Kernels divide by the number of
// elements that they see, so that a mean's is divided here.
absl::StatusOr<Factors> lossBackwardFactors(const RuleCall& call, absl::string_view) {
  const std::int64_t reduction = call.integer("reduction", kMean);
  for (std::size_t i = 1; i < call.inputs.size(); ++i) {
    if (call.inputs[i]->shape != call.outputs[0]->shape) return absl::UnimplementedError("its inputs differ in shape");
  }
  absl::StatusOr<Factors> factors = notationFactors(call, "..., ..., ..., ... -> ...; linear 0");
  if (!factors.ok() || reduction != kMean) return factors;
  const double count = static_cast<double>(call.outputs[0]->numel());
  if (count == 0 || isHalf(*call.outputs[0])) return notationFactors(call, "*, *, *, * -> *");
  factors->combined.push_back({factors->all(),
                               [dims = factors->inputs, outputs = factors->outputs, count](
                                   const RuleCall& planned, std::int64_t) -> absl::StatusOr<Program> {
                                 ProgramBuilder builder(absl::MakeConstSpan(planned.inputs), dims);
                                 const std::uint32_t share = builder.map("aten::div.Scalar", 0, {count});
                                 std::vector<Value> arguments = withReduction(planned, kSum);
                                 arguments[0] = ProgramBuilder::tensor(share);
                                 return builder.finish(
                                     {builder.run(nameOf(planned.schema.operator_name()), std::move(arguments),
                                                  {*planned.outputs[0], outputs[0], {}})});
                               },
                               {}});
  return factors;
}

// What a program needs of a negative log likelihood's targets: the class of each sample as an index of this rank's part
// of the classes, a mask of samples whose class lies on other ranks or is ignored, and the samples' weights, 0 for
// these.
struct Targets {
  std::uint32_t classes;
  std::uint32_t absent;
  std::uint32_t weights;
};

Targets targetsOf(ProgramBuilder& builder, const RuleCall& call, std::uint32_t self, std::uint32_t target,
                  DType compute) {
  const auto tensor = ProgramBuilder::tensor;
  const auto as = [&](DType dtype) {
    ProgramTensor result = builder[target];
    result.meta.dtype = dtype;
    return result;
  };
  const std::int64_t ignored = call.integer("ignore_index", -100);
  const std::uint32_t ignore = builder.run("aten::eq.Scalar", {tensor(target), ignored}, as(DType::kBool));
  const std::uint32_t valid = builder.map("aten::masked_fill.Scalar", target, {tensor(ignore), std::int64_t{0}});
  const ProgramBuilder::LocalIndices local = builder.localIndices(valid, self, 1);
  const std::uint32_t absent = builder.map("aten::logical_or", local.elsewhere, {tensor(ignore)});
  const int weight = call.input("weight");
  if (weight < 0) {
    const std::uint32_t present = builder.map("aten::logical_not", absent);
    return {local.indices, absent, builder.cast(present, compute)};
  }
  const auto given = static_cast<std::uint32_t>(weight);
  const std::uint32_t weights =
      builder.run("dtorch::rows_or_zeros", {tensor(given), std::int64_t{0}, tensor(local.indices), tensor(absent)},
                  as(builder[given].meta.dtype));
  return {local.indices, absent, builder.cast(weights, compute)};
}

// The terms of samples and classes: " s2 s3" are further dimensions of a sample.
std::string spatialOf(std::size_t rank) {
  std::string spatial;
  for (std::size_t d = 2; d < rank; ++d) absl::StrAppend(&spatial, " s", d);
  return spatial;
}

// Negative log likelihood. Where classes are split, the rank that has a sample's class gives its loss, the others zero.
// Detail "cross entropy": of a softmax of the input.
absl::StatusOr<Factors> nllFactors(const RuleCall& call, absl::string_view detail) {
  const Value* smoothing = call.argument("label_smoothing");
  const auto* smoothed = smoothing == nullptr ? nullptr : smoothing->as<double>();
  if (smoothed != nullptr && *smoothed != 0) return absl::UnimplementedError("label_smoothing mixes all classes");
  const bool normalises = detail == "cross entropy";
  const bool tellsWeight = call.outputs.size() > 1;
  const std::int64_t reduction = call.integer("reduction", kMean);
  const std::size_t rank = call.inputs[0]->shape.size();
  if (rank < 2) return absl::UnimplementedError("it has one sample only");
  if (call.inputs[1]->dtype != DType::kInt64) return absl::UnimplementedError("its targets are not int64");
  const std::string spatial = spatialOf(rank);
  absl::StatusOr<Factors> factors =
      notationFactors(call, absl::StrCat("n c", spatial, ", n", spatial, ", c -> ",
                                         reduction == kNone ? absl::StrCat("n", spatial) : std::string("*"),
                                         tellsWeight ? ", *" : "", normalises ? "; full c" : ""));
  if (!factors.ok()) return factors;
  factors->combined.push_back(
      {factors->all(),
       [dims = factors->inputs, reduction, normalises, tellsWeight](const RuleCall& planned,
                                                                    std::int64_t) -> absl::StatusOr<Program> {
         ProgramBuilder builder(absl::MakeConstSpan(planned.inputs), dims);
         const auto tensor = ProgramBuilder::tensor;
         const DType dtype = planned.outputs[0]->dtype;
         const DType compute = computeType(dtype);
         const std::uint32_t likely = normalises ? builder.softmax(builder.cast(0, compute), 1, true) : 0;
         const Targets targets = targetsOf(builder, planned, 0, 1, compute);
         const auto finish = [&](std::uint32_t loss, std::uint32_t weight) {
           return builder.finish(tellsWeight ? std::vector<std::uint32_t>{loss, weight}
                                             : std::vector<std::uint32_t>{loss});
         };
         const auto total = [&](std::uint32_t number) {
           return builder.run("aten::sum", {tensor(number)}, {*makeMeta(compute, {}), {}, {ReduceOp::kSum}});
         };
         ProgramTensor picked = builder[1];
         picked.meta.dtype = builder[likely].meta.dtype;
         const std::uint32_t own = builder.run(
             "dtorch::entries_or_zeros",
             {tensor(likely), std::int64_t{1}, tensor(targets.classes), tensor(targets.absent)}, std::move(picked));
         std::uint32_t losses = builder.map(
             "aten::neg", builder.map("aten::mul.Tensor", builder.cast(own, compute), {tensor(targets.weights)}));
         if (reduction == kNone) {  // nothing is said of the weights then
           const std::uint32_t loss = builder.cast(losses, dtype);
           return finish(
               loss, tellsWeight ? builder.factory("aten::zeros", {*makeMeta(dtype, {}), {}, {ReduceOp::kSum}}) : loss);
         }
         const std::uint32_t sum = total(losses);
         const std::uint32_t weight = total(targets.weights);
         if (reduction == kSum) return finish(builder.cast(sum, dtype), builder.cast(weight, dtype));
         const std::uint32_t whole = builder.reduced(weight);
         const std::uint32_t mean = builder.map("aten::div.Tensor", builder.reduced(sum), {tensor(whole)});
         return finish(builder.cast(mean, dtype), builder.cast(whole, dtype));
       },
       reduction == kMean ? std::vector<ReduceOp>() : std::vector<ReduceOp>{ReduceOp::kSum}});
  return factors;
}

// total_weight is the whole's, so that each rank's part of the gradient is right by itself.
absl::StatusOr<Factors> nllBackwardFactors(const RuleCall& call, absl::string_view) {
  const std::size_t rank = call.inputs[1]->shape.size();
  if (rank < 2) return absl::UnimplementedError("it has one sample only");
  if (call.inputs[2]->dtype != DType::kInt64) return absl::UnimplementedError("its targets are not int64");
  const std::string spatial = spatialOf(rank);
  absl::StatusOr<Factors> factors = notationFactors(call, absl::StrCat("n", spatial, ", n c", spatial, ", n", spatial,
                                                                       ", c, * -> n c", spatial, "; linear 0; full c"));
  if (!factors.ok()) return factors;
  const int classes = factors->inputs[1][1];
  if (classes == Factors::kWhole) return factors;
  const bool mean = call.integer("reduction", kMean) == kMean;
  factors->combined.push_back(
      {{classes},
       [dims = factors->inputs, mean](const RuleCall& planned, std::int64_t) -> absl::StatusOr<Program> {
         ProgramBuilder builder(absl::MakeConstSpan(planned.inputs), dims);
         const auto tensor = ProgramBuilder::tensor;
         const DType dtype = planned.outputs[0]->dtype;
         const DType compute = computeType(dtype);
         const Targets targets = targetsOf(builder, planned, 1, 2, compute);
         std::uint32_t share = builder.map("aten::mul.Tensor", targets.weights, {tensor(builder.cast(0, compute))});
         if (mean) {
           const auto total = static_cast<std::uint32_t>(planned.input("total_weight"));
           share = builder.map("aten::div.Tensor", share, {tensor(builder.cast(total, compute))});
         }
         share = builder.cast(builder.map("aten::neg", share), dtype);
         // 0 / 0 where nothing counts.
         share = builder.map("aten::masked_fill.Scalar", share, {tensor(targets.absent), 0.0});
         const auto column = [&](std::uint32_t number) {
           ProgramTensor result = builder[number];
           result.meta.shape.insert(result.meta.shape.begin() + 1, 1);
           result.meta.strides = contiguousStrides(result.meta.shape);
           result.dims.insert(result.dims.begin() + 1, Factors::kWhole);
           return builder.run("aten::unsqueeze", {tensor(number), std::int64_t{1}}, std::move(result));
         };
         const std::uint32_t rows =
             builder.map("aten::masked_fill.Scalar", targets.classes, {tensor(targets.absent), std::int64_t{0}});
         const std::uint32_t zeros = builder.map("aten::zeros_like", 1);
         return builder.finish(
             {builder.map("aten::scatter.src", zeros, {std::int64_t{1}, tensor(column(rows)), tensor(column(share))})});
       },
       {}});
  return factors;
}

constexpr std::array kRules = std::to_array<Rule>({
    {"aten::mse_loss", elementwiseLossFactors, ""},
    {"aten::l1_loss", elementwiseLossFactors, ""},
    {"aten::smooth_l1_loss", elementwiseLossFactors, ""},
    {"aten::huber_loss", elementwiseLossFactors, ""},
    {"aten::binary_cross_entropy", elementwiseLossFactors, ""},
    {"aten::binary_cross_entropy_with_logits", elementwiseLossFactors, ""},
    {"aten::soft_margin_loss", elementwiseLossFactors, ""},
    {"aten::kl_div", elementwiseLossFactors, ""},
    {"aten::hinge_embedding_loss", elementwiseLossFactors, ""},
    {"aten::margin_ranking_loss", elementwiseLossFactors, ""},
    {"aten::poisson_nll_loss", elementwiseLossFactors, ""},
    {"aten::mse_loss_backward", lossBackwardFactors, ""},
    {"aten::smooth_l1_loss_backward", lossBackwardFactors, ""},
    {"aten::huber_loss_backward", lossBackwardFactors, ""},
    {"aten::binary_cross_entropy_backward", lossBackwardFactors, ""},
    {"aten::soft_margin_loss_backward", lossBackwardFactors, ""},
    {"aten::nll_loss_forward", nllFactors, ""},
    {"aten::nll_loss2d_forward", nllFactors, ""},
    {"aten::nll_loss", nllFactors, ""},
    {"aten::nll_loss2d", nllFactors, ""},
    {"aten::nll_loss_nd", nllFactors, ""},
    {"aten::cross_entropy_loss", nllFactors, "cross entropy"},
    {"aten::nll_loss_backward", nllBackwardFactors, ""},
    {"aten::nll_loss2d_backward", nllBackwardFactors, ""},
});

}  // namespace

absl::Span<const Rule> lossRules() { return kRules; }

}  // namespace dtorch
