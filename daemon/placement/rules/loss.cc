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

std::vector<int> allFactors(const Factors& factors) {
  std::vector<int> all;
  for (int factor = 0; factor < factors.count; ++factor) all.push_back(factor);
  return all;
}

// One loss an element, then none, their sum or their mean. A mean is the sum over the number of elements of the whole.
// Detail: the inputs of one element, as a notation; it has one factor for each of their dimensions.
absl::StatusOr<Factors> elementwiseLossFactors(const RuleCall& call, absl::string_view detail) {
  const std::int64_t reduction = call.integer("reduction", kMean);
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
    for (const int factor : allFactors(*factors)) factors->reduced.push_back({factor, ReduceOp::kSum});
    return factors;
  }
  const double count = static_cast<double>(call.inputs[0]->numel());
  if (count == 0 || isHalf(*call.outputs[0])) return notationFactors(call, "*, *, *, * -> *");
  factors->combined.push_back(
      {allFactors(*factors),
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
  factors->combined.push_back({allFactors(*factors),
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

// Negative log likelihood: classes are whole, samples may be split. The mean is over the samples' weights together.
absl::StatusOr<Factors> nllFactors(const RuleCall& call, absl::string_view) {
  const std::int64_t reduction = call.integer("reduction", kMean);
  const std::size_t rank = call.inputs[0]->shape.size();
  if (rank < 2) return absl::UnimplementedError("it has one sample only");
  std::string spatial;
  for (std::size_t d = 2; d < rank; ++d) absl::StrAppend(&spatial, " s", d);
  absl::StatusOr<Factors> factors =
      notationFactors(call, absl::StrCat("n [c]", spatial, ", n", spatial, ", [c] -> ",
                                         reduction == kNone ? absl::StrCat("n", spatial) : std::string("*"), ", *"));
  if (!factors.ok()) return factors;
  if (reduction != kMean) {
    for (const int factor : allFactors(*factors)) factors->reduced.push_back({factor, ReduceOp::kSum});
    return factors;
  }
  if (isHalf(*call.outputs[0])) return notationFactors(call, "*, *, * -> *");
  factors->combined.push_back(
      {allFactors(*factors),
       [dims = factors->inputs](const RuleCall& planned, std::int64_t) -> absl::StatusOr<Program> {
         ProgramBuilder builder(absl::MakeConstSpan(planned.inputs), dims);
         const std::uint32_t own =
             builder.runAll(nameOf(planned.schema.operator_name()), withReduction(planned, kSum),
                            {{*planned.outputs[0], {}, {ReduceOp::kSum}}, {*planned.outputs[1], {}, {ReduceOp::kSum}}});
         const std::uint32_t sum = builder.reduced(own);
         const std::uint32_t weight = builder.reduced(own + 1);
         const std::uint32_t mean =
             builder.run("aten::div.Tensor", {ProgramBuilder::tensor(sum), ProgramBuilder::tensor(weight)},
                         {*planned.outputs[0], {}, {}});
         return builder.finish({mean, weight});
       },
       {}});
  return factors;
}

// total_weight is the whole's, so that each rank's part of the gradient is right by itself.
absl::StatusOr<Factors> nllBackwardFactors(const RuleCall& call, absl::string_view) {
  const std::size_t rank = call.inputs[1]->shape.size();
  if (rank < 2) return absl::UnimplementedError("it has one sample only");
  std::string spatial;
  for (std::size_t d = 2; d < rank; ++d) absl::StrAppend(&spatial, " s", d);
  return notationFactors(
      call, absl::StrCat("n", spatial, ", n [c]", spatial, ", n", spatial, ", [c], * -> n [c]", spatial, "; linear 0"));
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
    {"aten::nll_loss_backward", nllBackwardFactors, ""},
    {"aten::nll_loss2d_backward", nllBackwardFactors, ""},
});

}  // namespace

absl::Span<const Rule> lossRules() { return kRules; }

}  // namespace dtorch
