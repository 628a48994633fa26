#include <algorithm>
#include <array>
#include <limits>
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

// Softmax over a dimension that is split: its greatest and the sum of its powers come from all ranks. Detail "log".
absl::StatusOr<Factors> softmaxFactors(const RuleCall& call, absl::string_view detail) {
  const std::size_t rank = call.inputs[0]->shape.size();
  absl::StatusOr<int> dim = call.dimension("dim", rank);
  if (!dim.ok()) return dim.status();
  const bool log = detail == "log";
  Factors factors;
  const std::vector<int> of = factors.addAll(rank);
  factors.inputs = {of};
  factors.outputs = {of};
  const int split = of[static_cast<std::size_t>(*dim)];
  factors.neverEmpty = {split};
  factors.combined.push_back({{split},
                              [of, dim = *dim, log](const RuleCall& planned, std::int64_t) -> absl::StatusOr<Program> {
                                ProgramBuilder builder(absl::MakeConstSpan(planned.inputs), {of});
                                const DType dtype = planned.outputs[0]->dtype;
                                const std::uint32_t result =
                                    builder.softmax(builder.cast(0, computeType(dtype)), dim, log);
                                return builder.finish({builder.cast(result, dtype)});
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
         const std::uint32_t gradient = builder.cast(0, compute);
         const std::uint32_t output = builder.cast(1, compute);
         const std::uint32_t weighted =
             log ? gradient : builder.run("aten::mul.Tensor", {tensor(gradient), tensor(output)}, as(compute, false));
         const std::uint32_t sum = builder.reduced(builder.run(
             "aten::sum.dim_IntList", {tensor(weighted), std::vector<std::int64_t>{dim}, true}, as(compute, true)));
         const std::uint32_t factor = log ? builder.map("aten::exp", output) : output;
         const std::uint32_t taken = builder.run("aten::mul.Tensor", {tensor(factor), tensor(sum)}, as(compute, false));
         const std::uint32_t result =
             builder.run("aten::sub.Tensor", {tensor(log ? gradient : weighted), tensor(taken)}, as(compute, false));
         return builder.finish({builder.cast(result, planned.outputs[0]->dtype)});
       },
       {}});
  return factors;
}

// How a running total goes on from one rank's part to the next: the kernel that totals a part, the one that puts what
// came before to a part's own running totals, and what comes before the first.
struct Scan {
  const char* total;
  const char* combine;
  Value start;
};

Scan scanOf(absl::string_view op, DType dtype) {
  const bool real = isFloatingPoint(dtype) || isComplex(dtype);
  const auto number = [&](std::int64_t value) { return real ? Value(static_cast<double>(value)) : Value(value); };
  if (op == "aten::cumsum") return {"aten::sum.dim_IntList", "aten::add.Tensor", number(0)};
  if (op == "aten::cumprod") return {"aten::prod.dim_int", "aten::mul.Tensor", number(1)};
  return {"aten::logsumexp", "aten::logaddexp", -std::numeric_limits<double>::infinity()};
}

// A running total over a dimension that is split: each rank's own, with the total of all ranks before it. Detail
// "linear": a Partial passes through.
absl::StatusOr<Factors> scanFactors(const RuleCall& call, absl::string_view detail) {
  const std::size_t rank = call.inputs[0]->shape.size();
  absl::StatusOr<int> dim = call.dimension("dim", rank);
  if (!dim.ok()) return dim.status();
  const std::string op = nameOf(call.schema.operator_name());
  const bool complexLog = op == "aten::logcumsumexp" && isComplex(call.inputs[0]->dtype);
  if (complexLog) return linesFactors(call, {*dim}, detail == "linear");
  Factors factors;
  const std::vector<int> of = factors.addAll(rank);
  factors.inputs = {of};
  factors.outputs = {of};
  if (detail == "linear") factors.linear = {{0}};
  const auto along = static_cast<std::size_t>(*dim);
  factors.combined.push_back(
      {{of[along]},
       [of, along, op](const RuleCall& planned, std::int64_t parts) -> absl::StatusOr<Program> {
         ProgramBuilder builder(absl::MakeConstSpan(planned.inputs), {of});
         const auto tensor = ProgramBuilder::tensor;
         const auto at = static_cast<std::int64_t>(along);
         const DType dtype = planned.outputs[0]->dtype;
         // Integers are totalled in int64, and wrap when they are cast back.
         const bool whole = !isFloatingPoint(dtype) && !isComplex(dtype);
         const std::uint32_t x = builder.cast(builder.cast(0, dtype), whole ? DType::kInt64 : computeType(dtype));
         const Scan scan = scanOf(op, builder[x].meta.dtype);
         const bool one = op == "aten::cumprod";  // its kernel takes one dimension
         const Value dims = one ? Value(at) : Value(std::vector<std::int64_t>{at});
         ProgramTensor total = builder[x];
         total.meta.shape[along] = parts;
         total.meta.strides = contiguousStrides(total.meta.shape);
         const std::uint32_t own = builder.run(scan.total, {tensor(x), dims, true}, total);
         std::vector<std::int64_t> shift(2 * (total.dims.size() - along), 0);
         shift[shift.size() - 2] = 1;
         shift[shift.size() - 1] = -1;
         const std::uint32_t shifted =
             builder.map("aten::constant_pad_nd", builder.gathered(own, along), {shift, scan.start});
         const std::uint32_t before = builder.placed(builder.map(op, shifted, {at}), total.dims);
         const std::uint32_t result = builder.map(scan.combine, builder.map(op, x, {at}), {tensor(before)});
         return builder.finish({builder.cast(result, dtype)});
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
    {"aten::cumsum", scanFactors, "linear"},
    {"aten::cumprod", scanFactors, ""},
    {"aten::logcumsumexp", scanFactors, ""},
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
