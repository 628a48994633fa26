#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/placement/notation.h"
#include "daemon/placement/program.h"
#include "daemon/placement/rule.h"

namespace dtorch {
namespace {

// Results of as many dimensions as the inputs, where each line along some dimensions is computed from that line of the
// inputs: these stay whole, all others pass through.
absl::StatusOr<Factors> linesFactors(const RuleCall& call, const std::vector<int>& dims, bool linear) {
  const std::size_t rank = call.inputs[0]->shape.size();
  Factors factors;
  std::vector<int> of = factors.addAll(rank);
  for (const int dim : dims) {
    if (static_cast<std::size_t>(dim) < rank) of[static_cast<std::size_t>(dim)] = Factors::kWhole;
  }
  const auto fits = [&](const TensorMeta& meta) {
    if (meta.shape.size() != rank) return false;
    for (std::size_t d = 0; d < rank; ++d) {
      if (of[d] != Factors::kWhole && meta.shape[d] != call.inputs[0]->shape[d]) return false;
    }
    return true;
  };
  for (const TensorMeta* input : call.inputs) {
    if (!fits(*input)) return absl::UnimplementedError("its inputs differ in shape");
  }
  for (const TensorMeta* output : call.outputs) {
    if (!fits(*output)) return absl::UnimplementedError("its results differ in shape from its input");
  }
  factors.inputs.assign(call.inputs.size(), of);
  factors.outputs.assign(call.outputs.size(), of);
  if (linear) factors.linear = {{0}};
  return factors;
}

// Lines along argument "dim". Detail "linear": a Partial passes through input 0; "last": the last dimension, whatever
// the arguments; "first", "second": likewise.
absl::StatusOr<Factors> alongDimFactors(const RuleCall& call, absl::string_view detail) {
  const std::size_t rank = call.inputs[0]->shape.size();
  const bool linear = absl::StrContains(detail, "linear");
  if (absl::StrContains(detail, "last")) return linesFactors(call, {static_cast<int>(rank) - 1}, linear);
  if (absl::StrContains(detail, "first")) return linesFactors(call, {0}, linear);
  if (absl::StrContains(detail, "second")) return linesFactors(call, {1}, linear);
  const std::string name = call.position("dim") >= 0 ? "dim" : "axis";
  if (const Value* given = call.argument(name); given != nullptr && given->isNone()) {
    return absl::UnimplementedError("without a dimension it works on all elements in their order");
  }
  absl::StatusOr<int> dim = call.dimension(name, rank);
  if (!dim.ok()) return dim.status();
  return linesFactors(call, {*dim}, linear);
}

// Lines along the dimensions of argument "dims" or "dim", None and an empty list meaning all.
absl::StatusOr<Factors> alongDimsFactors(const RuleCall& call, absl::string_view detail) {
  const std::size_t rank = call.inputs[0]->shape.size();
  const std::string name = call.position("dims") >= 0 ? "dims" : "dim";
  absl::StatusOr<std::vector<int>> dims = call.dimensions(name, rank);
  if (!dims.ok()) return dims.status();
  if (dims->empty() && absl::StrContains(detail, "all")) dims = call.dimensions("no such argument", rank);
  if (!dims.ok()) return dims.status();
  return linesFactors(call, *dims, absl::StrContains(detail, "linear"));
}

// torch.fft: one dimension, by default the last; two, by default the last two; or all. Detail: "1", "2", "n".
absl::StatusOr<Factors> fourierFactors(const RuleCall& call, absl::string_view detail) {
  // Libraries do not take batches of none.
  const auto full = [](absl::StatusOr<Factors> factors) {
    for (int factor = 0; factors.ok() && factor < factors->count; ++factor) factors->neverEmpty.push_back(factor);
    return factors;
  };
  const std::size_t rank = call.inputs[0]->shape.size();
  if (detail == "1") {
    absl::StatusOr<int> dim = call.dimension("dim", rank);
    if (!dim.ok()) return dim.status();
    return full(linesFactors(call, {*dim}, true));
  }
  const Value* given = call.argument("dim");
  const Value* sizes = call.argument("s");
  if ((given == nullptr || given->isNone()) && sizes != nullptr && !sizes->isNone()) {
    return absl::UnimplementedError("sizes without dimensions");
  }
  absl::StatusOr<std::vector<int>> dims = call.dimensions("dim", rank);
  if (!dims.ok()) return dims.status();
  return full(linesFactors(call, *dims, true));
}

// Half precisions are computed in float, as kernels do inside.
DType computeType(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16 ? DType::kFloat32 : dtype;
}

// Softmax over a dimension that is split: its greatest and the sum of its powers come from all ranks. Detail "log".
absl::StatusOr<Factors> softmaxFactors(const RuleCall& call, absl::string_view detail) {
  const std::size_t rank = call.inputs[0]->shape.size();
  absl::StatusOr<int> dim = call.dimension("dim", rank);
  if (!dim.ok()) return dim.status();
  if (rank == 0) return linesFactors(call, {}, false);
  const bool log = detail == "log";
  Factors factors;
  const std::vector<int> of = factors.addAll(rank);
  factors.inputs = {of};
  factors.outputs = {of};
  const int split = of[static_cast<std::size_t>(*dim)];
  factors.neverEmpty = {split};
  factors.combined.push_back(
      {{split},
       [of, dim = *dim, log](const RuleCall& planned, std::int64_t) -> absl::StatusOr<Program> {
         ProgramBuilder builder(absl::MakeConstSpan(planned.inputs), {of});
         const auto along = static_cast<std::size_t>(dim);
         const auto as = [&](DType dtype, bool reduced, std::vector<ReduceOp> partial) {
           ProgramTensor tensor = builder[0];
           tensor.meta.dtype = dtype;
           if (reduced) tensor.meta.shape[along] = 1;
           if (reduced) tensor.dims[along] = Factors::kWhole;
           tensor.meta.strides = contiguousStrides(tensor.meta.shape);
           tensor.partial = std::move(partial);
           return tensor;
         };
         const auto tensor = ProgramBuilder::tensor;
         const DType compute = computeType(planned.outputs[0]->dtype);
         const std::vector<std::int64_t> dims = {dim};
         std::uint32_t x = 0;
         if (builder[0].meta.dtype != compute)
           x = builder.run("aten::to.dtype", {tensor(0), compute}, as(compute, false, {}));
         const std::uint32_t greatest =
             builder.reduced(builder.run("aten::amax", {tensor(x), dims, true}, as(compute, true, {ReduceOp::kMax})));
         const std::uint32_t apart =
             builder.run("aten::sub.Tensor", {tensor(x), tensor(greatest)}, as(compute, false, {}));
         const std::uint32_t powers = builder.map("aten::exp", apart);
         const std::uint32_t sum = builder.reduced(
             builder.run("aten::sum.dim_IntList", {tensor(powers), dims, true}, as(compute, true, {ReduceOp::kSum})));
         std::uint32_t result =
             log ? builder.run("aten::sub.Tensor", {tensor(apart), tensor(builder.map("aten::log", sum))},
                               as(compute, false, {}))
                 : builder.run("aten::div.Tensor", {tensor(powers), tensor(sum)}, as(compute, false, {}));
         if (compute != planned.outputs[0]->dtype) {
           result = builder.run("aten::to.dtype", {tensor(result), planned.outputs[0]->dtype},
                                as(planned.outputs[0]->dtype, false, {}));
         }
         return builder.finish({result});
       },
       {}});
  return factors;
}

// Of grad_output and output: both need a sum over the dimension. Detail "log".
absl::StatusOr<Factors> softmaxBackwardFactors(const RuleCall& call, absl::string_view detail) {
  const std::size_t rank = call.inputs[0]->shape.size();
  absl::StatusOr<int> dim = call.dimension("dim", rank);
  if (!dim.ok()) return dim.status();
  const bool log = detail == "log";
  Factors factors;
  const std::vector<int> of = factors.addAll(rank);
  factors.inputs = {of, of};
  factors.outputs = {of};
  factors.linear = {{0}};
  if (rank == 0) return factors;
  factors.combined.push_back(
      {{of[static_cast<std::size_t>(*dim)]},
       [of, dim = *dim, log](const RuleCall& planned, std::int64_t) -> absl::StatusOr<Program> {
         ProgramBuilder builder(absl::MakeConstSpan(planned.inputs), {of, of});
         const auto along = static_cast<std::size_t>(dim);
         const auto tensor = ProgramBuilder::tensor;
         const DType compute = computeType(planned.inputs[0]->dtype);
         const auto as = [&](DType dtype, bool reduced) {
           ProgramTensor result = builder[0];
           result.meta.dtype = dtype;
           if (reduced) result.meta.shape[along] = 1;
           if (reduced) result.dims[along] = Factors::kWhole;
           result.meta.strides = contiguousStrides(result.meta.shape);
           if (reduced) result.partial = {ReduceOp::kSum};
           return result;
         };
         const auto cast = [&](std::uint32_t number) {
           if (builder[number].meta.dtype == compute) return number;
           return builder.run("aten::to.dtype", {tensor(number), compute}, as(compute, false));
         };
         const std::uint32_t gradient = cast(0);
         const std::uint32_t output = cast(1);
         const std::uint32_t weighted =
             log ? gradient : builder.run("aten::mul.Tensor", {tensor(gradient), tensor(output)}, as(compute, false));
         const std::uint32_t sum = builder.reduced(builder.run(
             "aten::sum.dim_IntList", {tensor(weighted), std::vector<std::int64_t>{dim}, true}, as(compute, true)));
         const std::uint32_t factor = log ? builder.map("aten::exp", output) : output;
         const std::uint32_t taken = builder.run("aten::mul.Tensor", {tensor(factor), tensor(sum)}, as(compute, false));
         std::uint32_t result =
             builder.run("aten::sub.Tensor", {tensor(log ? gradient : weighted), tensor(taken)}, as(compute, false));
         if (compute != planned.outputs[0]->dtype) {
           result = builder.run("aten::to.dtype", {tensor(result), planned.outputs[0]->dtype},
                                as(planned.outputs[0]->dtype, false));
         }
         return builder.finish({result});
       },
       {}});
  return factors;
}

// Two tensors that broadcast, computed along one dimension that disappears (or, "keeps", stays).
absl::StatusOr<Factors> pairAlongDimFactors(const RuleCall& call, absl::string_view detail) {
  std::size_t rank = 0;
  for (const TensorMeta* input : call.inputs) rank = std::max(rank, input->shape.size());
  absl::StatusOr<int> dim =
      absl::StrContains(detail, "last") ? absl::StatusOr<int>(static_cast<int>(rank) - 1) : call.dimension("dim", rank);
  if (!dim.ok()) return dim.status();
  const bool keeps = absl::StrContains(detail, "keeps") || call.flag("keepdim");
  std::string term;
  std::string output;
  for (std::size_t d = 0; d < rank; ++d) {
    const bool along = static_cast<int>(d) == *dim;
    absl::StrAppend(&term, along ? "[x]" : absl::StrCat("d", d), " ");
    if (!along || keeps) absl::StrAppend(&output, along ? "[x]" : absl::StrCat("d", d), " ");
  }
  return notationFactors(call, absl::StrCat(term, ", ", term, " -> ", output));
}

constexpr std::array kRules = std::to_array<Rule>({
    {"aten::softmax", softmaxFactors, ""},
    {"aten::_softmax", softmaxFactors, ""},
    {"aten::special_softmax", softmaxFactors, ""},
    {"aten::log_softmax", softmaxFactors, "log"},
    {"aten::_log_softmax", softmaxFactors, "log"},
    {"aten::special_log_softmax", softmaxFactors, "log"},
    {"aten::_safe_softmax", alongDimFactors, ""},
    {"aten::_softmax_backward_data", softmaxBackwardFactors, ""},
    {"aten::_log_softmax_backward_data", softmaxBackwardFactors, "log"},
    {"aten::cumsum", alongDimFactors, "linear"},
    {"aten::cumprod", alongDimFactors, ""},
    {"aten::logcumsumexp", alongDimFactors, ""},
    {"aten::_logcumsumexp", alongDimFactors, ""},
    {"aten::cummax", alongDimFactors, ""},
    {"aten::cummin", alongDimFactors, ""},
    {"aten::cumprod_backward", alongDimFactors, ""},
    {"aten::cummaxmin_backward", alongDimFactors, "linear"},
    {"aten::sort", alongDimFactors, ""},
    {"aten::argsort", alongDimFactors, ""},
    {"aten::msort", alongDimFactors, "first"},
    {"aten::topk", alongDimFactors, ""},
    {"aten::diff", alongDimFactors, ""},
    {"aten::glu", alongDimFactors, ""},
    {"aten::glu_backward", alongDimFactors, "linear"},
    {"aten::cumulative_trapezoid.dx", alongDimFactors, "linear"},
    {"aten::flip", alongDimsFactors, "linear"},
    {"aten::fliplr", alongDimFactors, "second linear"},
    {"aten::flipud", alongDimFactors, "first linear"},
    {"aten::roll", alongDimsFactors, "linear all"},
    {"aten::rot90", alongDimsFactors, "linear"},
    {"aten::fft_fftshift", alongDimsFactors, "linear"},
    {"aten::fft_ifftshift", alongDimsFactors, "linear"},
    {"aten::fft_fft", fourierFactors, "1"},
    {"aten::fft_ifft", fourierFactors, "1"},
    {"aten::fft_rfft", fourierFactors, "1"},
    {"aten::fft_irfft", fourierFactors, "1"},
    {"aten::fft_hfft", fourierFactors, "1"},
    {"aten::fft_ihfft", fourierFactors, "1"},
    {"aten::fft_fft2", fourierFactors, "n"},
    {"aten::fft_ifft2", fourierFactors, "n"},
    {"aten::fft_rfft2", fourierFactors, "n"},
    {"aten::fft_irfft2", fourierFactors, "n"},
    {"aten::fft_hfft2", fourierFactors, "n"},
    {"aten::fft_ihfft2", fourierFactors, "n"},
    {"aten::fft_fftn", fourierFactors, "n"},
    {"aten::fft_ifftn", fourierFactors, "n"},
    {"aten::fft_rfftn", fourierFactors, "n"},
    {"aten::fft_irfftn", fourierFactors, "n"},
    {"aten::fft_hfftn", fourierFactors, "n"},
    {"aten::fft_ihfftn", fourierFactors, "n"},
    {"aten::_fft_c2c", fourierFactors, "n"},
    {"aten::_fft_r2c", fourierFactors, "n"},
    {"aten::_fft_c2r", fourierFactors, "n"},
    {"aten::cross", pairAlongDimFactors, "keeps"},
    {"aten::linalg_cross", pairAlongDimFactors, "keeps"},
    {"aten::linalg_vecdot", pairAlongDimFactors, ""},
    {"aten::cosine_similarity", pairAlongDimFactors, ""},
    {"aten::pairwise_distance", pairAlongDimFactors, "last"},
});

}  // namespace

absl::Span<const Rule> alongDimRules() { return kRules; }

}  // namespace dtorch
