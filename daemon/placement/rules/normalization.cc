#include <algorithm>
#include <array>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/placement/notation.h"
#include "daemon/placement/program.h"
#include "daemon/placement/rule.h"

namespace dtorch {
namespace {

// The term of output `o`; what was not asked for (output_mask) is empty.
std::string asked(const RuleCall& call, std::size_t o, const std::string& term) {
  return call.outputs[o]->dtype == DType::kBool ? "*" : term;
}

// The last dimensions, as many as argument `normalized_shape` has, are normalised and stay whole; the others pass
// through. Detail: what the inputs and outputs are, with N for the normalised dimensions and S for as many of extent 1.
absl::StatusOr<Factors> lastDimsFactors(const RuleCall& call, absl::string_view detail) {
  const Value* shape = call.argument("normalized_shape");
  const auto* normalized = shape == nullptr ? nullptr : shape->as<std::vector<std::int64_t>>();
  if (normalized == nullptr) return absl::UnimplementedError("no normalized_shape");
  std::string notation;
  for (const char letter : detail) {
    if (letter != 'N' && letter != 'S') {
      notation += letter;
      continue;
    }
    for (std::size_t d = 0; d < normalized->size(); ++d) {
      absl::StrAppend(&notation, letter == 'N' ? absl::StrCat("[n", d, "]") : "1",
                      d + 1 < normalized->size() ? " " : "");
    }
  }
  return notationFactors(call, notation);
}

// Whether all inputs are of one dtype that is precise enough to be added up in parts.
bool isOfOneFloat(const RuleCall& call) {
  const DType dtype = call.inputs[0]->dtype;
  return (dtype == DType::kFloat32 || dtype == DType::kFloat64) &&
         std::all_of(call.inputs.begin(), call.inputs.end(),
                     [&](const TensorMeta* input) { return input->dtype == dtype; });
}

// Programs for statistics over a batch in parts. Vectors have an element for each channel.
class BatchProgram {
 public:
  BatchProgram(const RuleCall& call, const Factors& factors, std::uint32_t x)
      : builder_(absl::MakeConstSpan(call.inputs), factors.inputs),
        x_(x),
        channels_(factors.inputs[x][1]),
        meta_(*makeMeta(call.inputs[x]->dtype, {call.inputs[x]->shape[1]})) {}

  ProgramBuilder& builder() { return builder_; }
  ProgramTensor vector(std::vector<ReduceOp> partial = {}) const { return {meta_, {channels_}, std::move(partial)}; }
  ProgramTensor like(std::uint32_t number) const { return builder_[number]; }
  // Kernels on vectors; numbers of tensors come as tensor().
  std::uint32_t of(const char* op, std::vector<Value> arguments) {
    return builder_.run(op, std::move(arguments), vector());
  }
  // The sum over all ranks of `part` times the rows that the rank has.
  std::uint32_t sumOfRows(std::uint32_t part) {
    const std::uint32_t weighed = builder_.run("aten::mul.Scalar", {ProgramBuilder::tensor(part), std::int64_t{0}},
                                               vector({ReduceOp::kSum}), {{1, x_, 0, LocalRange::Part::kLength}});
    return builder_.reduced(weighed);
  }
  // A vector as it broadcasts against x.
  std::uint32_t across(std::uint32_t number) {
    for (std::size_t d = 2; d < builder_[x_].dims.size(); ++d) {
      ProgramTensor longer = builder_[number];
      longer.meta = *makeMeta(longer.meta.dtype, [&] {
        std::vector<std::int64_t> shape = longer.meta.shape;
        shape.push_back(1);
        return shape;
      }());
      longer.dims.push_back(Factors::kWhole);
      number = builder_.run("aten::unsqueeze", {ProgramBuilder::tensor(number), std::int64_t{-1}}, std::move(longer));
    }
    return number;
  }

 private:
  ProgramBuilder builder_;
  const std::uint32_t x_;
  const int channels_;
  const TensorMeta meta_;
};

Value tensorOrNone(const RuleCall& call, absl::string_view name) {
  const int input = call.input(name);
  return input < 0 ? Value() : ProgramBuilder::tensor(static_cast<std::uint32_t>(input));
}

// Mean and variance of each rank's rows are put together to those of the batch, by which the rows are normalised.
Program batchNormProgram(const RuleCall& call, const Factors& factors) {
  BatchProgram p(call, factors, 0);
  const auto tensor = &ProgramBuilder::tensor;
  const auto rows = static_cast<double>(call.inputs[0]->shape[0]);
  const std::int64_t count = call.inputs[0]->numel() / call.inputs[0]->shape[1];
  const double momentum = call.argument("momentum")->as<double>() ? *call.argument("momentum")->as<double>() : 0;
  const double eps = *call.argument("eps")->as<double>();
  const char* op = "aten::native_batch_norm";
  // The kernel gives mean and 1 / sqrt(variance + eps), and 0 where that is 0: with an eps that no variance notices.
  constexpr double kNothing = 1e-30;
  const std::uint32_t own = p.builder().runAll(op, {tensor(0), Value(), Value(), Value(), Value(), true, 0.0, kNothing},
                                               {p.like(0), p.vector({ReduceOp::kSum}), p.vector({ReduceOp::kSum})});
  const std::uint32_t ownMean = own + 1;
  const std::uint32_t mean = p.of("aten::div.Scalar", {tensor(p.sumOfRows(ownMean)), rows});
  const std::uint32_t ownVariance = p.of("aten::pow.Tensor_Scalar", {tensor(own + 2), -2.0});
  std::uint32_t apart = p.of("aten::square", {tensor(p.of("aten::sub.Tensor", {tensor(ownMean), tensor(mean)}))});
  apart = p.of("aten::add.Tensor", {tensor(apart), tensor(ownVariance)});
  const std::uint32_t plain = p.of("aten::div.Scalar", {tensor(p.sumOfRows(apart)), rows});
  const std::uint32_t scale = p.of("aten::rsqrt", {tensor(p.of("aten::add.Scalar", {tensor(plain), eps}))});
  for (const auto& [name, value, factor] :
       {std::tuple{"running_mean", mean, 1.0},
        {"running_var", plain,
         static_cast<double>(count) / static_cast<double>(std::max<std::int64_t>(count - 1, 1))}}) {
    const int running = call.input(name);
    if (running < 0) continue;
    const auto target = static_cast<std::uint32_t>(running);
    p.of("aten::mul_.Scalar", {tensor(target), 1 - momentum});
    p.of("aten::add_.Tensor", {tensor(target), tensor(value), momentum * factor});
  }
  const std::uint32_t made = p.builder().runAll(op,
                                                {tensor(0), tensorOrNone(call, "weight"), tensorOrNone(call, "bias"),
                                                 tensor(mean), tensor(plain), false, momentum, eps},
                                                {p.like(0), p.vector(), p.vector()});
  return p.builder().finish({made, mean, scale});
}

// The gradients of weight and bias are sums over the batch, and that of the input is made of them.
Program batchNormBackwardProgram(const RuleCall& call, const Factors& factors) {
  const auto x = static_cast<std::uint32_t>(call.input("input"));
  BatchProgram p(call, factors, x);
  const auto tensor = &ProgramBuilder::tensor;
  const auto count = static_cast<double>(call.inputs[x]->numel()) / static_cast<double>(call.inputs[x]->shape[1]);
  std::vector<Value> arguments = call.arguments;
  arguments.back() = Value(std::vector<bool>{false, true, true});
  const std::uint32_t own = p.builder().runAll(
      "aten::native_batch_norm_backward", std::move(arguments),
      {{*makeMeta(DType::kBool, {0}), {Factors::kWhole}, {}}, p.vector({ReduceOp::kSum}), p.vector({ReduceOp::kSum})});
  const std::uint32_t ofWeight = p.builder().reduced(own + 1);
  const std::uint32_t ofBias = p.builder().reduced(own + 2);
  const Value mean = tensorOrNone(call, "save_mean");
  const Value scale = tensorOrNone(call, "save_invstd");
  const Value weight = tensorOrNone(call, "weight");
  // scale * weight * (gradient - ofBias / count - (x - mean) * scale * ofWeight / count)
  const std::uint32_t steep =
      weight.isNone() ? p.of("aten::clone", {scale}) : p.of("aten::mul.Tensor", {scale, weight});
  const std::uint32_t slope =
      p.of("aten::mul.Tensor", {scale, tensor(p.of("aten::div.Scalar", {tensor(ofWeight), -count}))});
  const std::uint32_t level = p.of("aten::sub.Tensor", {tensor(p.of("aten::div.Scalar", {tensor(ofBias), -count})),
                                                        tensor(p.of("aten::mul.Tensor", {mean, tensor(slope)}))});
  const std::uint32_t a = p.across(steep);
  const std::uint32_t b = p.across(p.of("aten::mul.Tensor", {tensor(slope), tensor(steep)}));
  const std::uint32_t c = p.across(p.of("aten::mul.Tensor", {tensor(level), tensor(steep)}));
  const std::uint32_t line =
      p.builder().run("aten::addcmul", {tensor(c), tensor(x), tensor(b), std::int64_t{1}}, p.like(x));
  const std::uint32_t ofInput =
      p.builder().run("aten::addcmul_",
                      {tensor(line), ProgramBuilder::tensor(static_cast<std::uint32_t>(call.input("grad_out"))),
                       tensor(a), std::int64_t{1}},
                      p.like(x));
  return p.builder().finish({ofInput, ofWeight, ofBias});
}

// Channels pass through; batch does, unless statistics are taken over it. Detail: "sample", "training": which of both,
// whatever the arguments say.
absl::StatusOr<Factors> batchNormFactors(const RuleCall& call, absl::string_view detail) {
  const std::size_t dims = call.inputs[0]->shape.size();
  if (dims < 2) return absl::UnimplementedError("its input has fewer than two dimensions");
  // Without running statistics they are taken of the batch in any case.
  const bool given = call.input("running_mean") >= 0;
  const bool training = detail != "sample" && (detail == "training" || !given || call.flag("training"));
  std::string spatial;
  for (std::size_t d = 2; d < dims; ++d) absl::StrAppend(&spatial, " [s", d, "]");
  // Programs make new tensors, and each form has its own way with running statistics.
  const bool inParts =
      training && call.schema.operator_name() == c10::OperatorName("aten::native_batch_norm", "") && isOfOneFloat(call);
  const std::string batch = training && !inParts ? "[n]" : "n";
  const std::string x = absl::StrCat(batch, " c", spatial);
  std::string notation = absl::StrCat(x, ", c, c, c, c -> ", x);
  for (std::size_t o = 1; o < call.outputs.size(); ++o) {
    // Statistics that are not taken are empty.
    absl::StrAppend(&notation, ", ",
                    call.outputs[o]->shape == call.inputs[0]->shape        ? x
                    : call.outputs[o]->numel() == call.inputs[0]->shape[1] ? "c"
                                                                           : "[e]");
  }
  absl::StatusOr<Factors> factors = notationFactors(call, notation + (inParts ? "; full c n" : "; full c"));
  if (!factors.ok() || !inParts) return factors;
  const int n = factors->inputs[0][0];
  if (n == Factors::kWhole) return factors;
  factors->programWrites = true;
  factors->combined.push_back({{n},
                               [factors = *factors](const RuleCall& planned, std::int64_t) -> absl::StatusOr<Program> {
                                 return batchNormProgram(planned, factors);
                               },
                               {}});
  return factors;
}

absl::StatusOr<Factors> batchNormBackwardFactors(const RuleCall& call, absl::string_view) {
  const std::size_t dims = call.inputs[0]->shape.size();
  if (dims < 2) return absl::UnimplementedError("its input has fewer than two dimensions");
  std::string spatial;
  for (std::size_t d = 2; d < dims; ++d) absl::StrAppend(&spatial, " [s", d, "]");
  const bool training = call.flag("train", true);
  const bool asksAll = std::none_of(call.outputs.begin(), call.outputs.end(),
                                    [](const TensorMeta* output) { return output->dtype == DType::kBool; });
  const bool inParts = training && asksAll && isOfOneFloat(call) && call.input("save_mean") >= 0;
  const std::string x = absl::StrCat(training && !inParts ? "[n]" : "n", " c", spatial);
  // Where statistics are given, the gradients of weight and bias are sums over the batch.
  absl::StatusOr<Factors> factors =
      notationFactors(call, absl::StrCat(x, ", ", x, ", c, c, c, c, c -> ", asked(call, 0, x), ", ",
                                         asked(call, 1, "c"), ", ", asked(call, 2, "c"),
                                         inParts    ? "; full c n"
                                         : training ? "; full c"
                                                    : "; n:sum; full c n"));
  if (!factors.ok() || !inParts) return factors;
  const int n = factors->inputs[0][0];
  if (n == Factors::kWhole) return factors;
  factors->combined.push_back({{n},
                               [factors = *factors](const RuleCall& planned, std::int64_t) -> absl::StatusOr<Program> {
                                 return batchNormBackwardProgram(planned, factors);
                               },
                               {}});
  return factors;
}

// Groups are of channels, so that these stay whole; batch passes through, its size being argument N.
absl::StatusOr<Factors> groupNormFactors(const RuleCall& call, absl::string_view detail) {
  std::string x = "n [c]";
  for (std::size_t d = 2; d < call.inputs[0]->shape.size(); ++d) absl::StrAppend(&x, " [s", d, "]");
  if (detail == "composite") return notationFactors(call, absl::StrCat(x, ", [c], [c] -> ", x));
  if (detail == "native") return notationFactors(call, absl::StrCat(x, ", [c], [c] -> ", x, ", n [g]; sizes N=0.0"));
  // Without the first gradient nothing has the size of this rank's batch.
  if (asked(call, 0, x) != x) return absl::UnimplementedError("it does not return the input's gradient");
  return notationFactors(
      call, absl::StrCat(x, ", ", x, ", n [g], n [g], [c] -> ", asked(call, 0, x), ", ", asked(call, 1, "[c]"), ", ",
                         asked(call, 2, "[c]"), "; n:sum", asked(call, 0, x) == x ? "; sizes N=0.0" : ""));
}

absl::StatusOr<Factors> layerNormBackwardFactors(const RuleCall& call, absl::string_view) {
  const bool rms = call.outputs.size() == 2;
  const std::string inputs = rms ? "... N, ... N, ... S, N" : "... N, ... N, ... S, ... S, N, N";
  absl::StatusOr<Factors> factors =
      lastDimsFactors(call, absl::StrCat(inputs, " -> ", asked(call, 0, "... N"), ", ", asked(call, 1, "N"),
                                         rms ? "" : absl::StrCat(", ", asked(call, 2, "N"))));
  if (!factors.ok()) return factors.status();
  // Each row adds to the gradients of weight and bias.
  for (const int factor : factors->inputs[0]) {
    if (factor != Factors::kWhole) factors->reduced.push_back({factor, ReduceOp::kSum});
  }
  return factors;
}

constexpr std::array kRules = std::to_array<Rule>({
    {"aten::layer_norm", lastDimsFactors, "... N, N, N -> ... N"},
    {"aten::native_layer_norm", lastDimsFactors, "... N, N, N -> ... N, ... S, ... S"},
    {"aten::native_layer_norm_backward", layerNormBackwardFactors, ""},
    {"dtorch::layer_norm_mul_add", lastDimsFactors, "... N, ... N, ... N -> ... N; linear 1 2"},
    {"aten::rms_norm", lastDimsFactors, "... N, N -> ... N"},
    {"aten::_fused_rms_norm", lastDimsFactors, "... N, N -> ... N, ... S"},
    {"aten::_fused_rms_norm_backward", layerNormBackwardFactors, ""},
    {"aten::batch_norm", batchNormFactors, ""},
    {"aten::native_batch_norm", batchNormFactors, ""},
    {"aten::_native_batch_norm_legit", batchNormFactors, ""},
    {"aten::_native_batch_norm_legit_functional", batchNormFactors, ""},
    {"aten::_native_batch_norm_legit_no_training", batchNormFactors, "sample"},
    {"aten::_batch_norm_with_update", batchNormFactors, "training"},
    {"aten::_batch_norm_no_update", batchNormFactors, "sample"},
    {"aten::native_batch_norm_backward", batchNormBackwardFactors, ""},
    {"aten::group_norm", groupNormFactors, "composite"},
    {"aten::native_group_norm", groupNormFactors, "native"},
    {"aten::native_group_norm_backward", groupNormFactors, "backward"},
});

}  // namespace

absl::Span<const Rule> normalizationRules() { return kRules; }

}  // namespace dtorch
