#include <algorithm>
#include <array>
#include <utility>

#include "daemon/placement/program.h"
#include "daemon/placement/rule.h"
#include "dispatch/prepared_call.h"

namespace dtorch {
namespace {

// Values must not depend on where a tensor lies: they are drawn for the whole tensor on every rank, from the session's
// one state, and each rank keeps its part. That costs the whole tensor's memory on each rank while it runs.

// Tensors like input 0 whose elements are not in a row would be filled in another order.
absl::Status checkContiguous(const RuleCall& call) {
  for (const c10::Argument& argument : call.schema.arguments()) {
    if (argument.is_out()) return absl::UnimplementedError("it writes random numbers to out=");
  }
  if (call.inputs.size() != 1) return absl::UnimplementedError("what it draws depends on its inputs' values");
  if (call.inputs[0]->strides == contiguousStrides(call.inputs[0]->shape)) return absl::OkStatus();
  return absl::UnimplementedError("it draws random numbers in the order of its input's strides");
}

Factors likeInput(const RuleCall& call) {
  Factors factors;
  const std::vector<int> of = factors.addAll(call.inputs[0]->shape.size());
  factors.inputs = {of};
  factors.outputs.assign(call.outputs.size(), of);
  return factors;
}

// A tensor on every rank, of the whole's sizes.
ProgramTensor whole(const TensorMeta& meta) { return {meta, std::vector<int>(meta.shape.size(), Factors::kWhole), {}}; }

// The values of input 0 do not matter: it is replaced, or written to.
absl::StatusOr<Factors> drawnFactors(const RuleCall& call, absl::string_view) {
  if (absl::Status status = checkContiguous(call); !status.ok()) return status;
  Factors factors = likeInput(call);
  const bool inPlace = call.schema.is_mutable();
  factors.programWrites = inPlace;
  factors.combined.push_back(
      {factors.all(),
       [dims = factors.inputs, inPlace](const RuleCall& planned, std::int64_t) -> absl::StatusOr<Program> {
         ProgramBuilder builder(absl::MakeConstSpan(planned.inputs), dims);
         const std::uint32_t empty = builder.factory("aten::empty.memory_format", whole(*planned.inputs[0]));
         std::vector<Value> arguments = planned.arguments;
         arguments[0] = ProgramBuilder::tensor(empty);
         const std::uint32_t drawn =
             builder.run(nameOf(planned.schema.operator_name()), std::move(arguments), whole(*planned.outputs[0]));
         const std::uint32_t part = builder.placed(drawn, dims[0]);
         if (!inPlace) return builder.finish({part});
         return builder.finish(
             {builder.run("aten::copy_", {ProgramBuilder::tensor(0), ProgramBuilder::tensor(part)}, builder[0])});
       },
       {}});
  return factors;
}

// Nothing is drawn: not in training, or with a probability of 0, which native_dropout draws for, too.
bool givesItsInput(const RuleCall& call) {
  const auto isFalse = [](const Value* value) {
    const auto* flag = value == nullptr ? nullptr : value->as<bool>();
    return flag != nullptr && !*flag;
  };
  const auto isOut = [](const c10::Argument& argument) { return argument.is_out(); };
  if (std::any_of(call.schema.arguments().begin(), call.schema.arguments().end(), isOut)) return false;
  const Value* probability = call.argument("p");
  const auto* real = probability == nullptr ? nullptr : probability->as<double>();
  const auto* integer = probability == nullptr ? nullptr : probability->as<std::int64_t>();
  const bool isZero = (real != nullptr && *real == 0) || (integer != nullptr && *integer == 0);
  return isFalse(call.argument("train")) || (isZero && call.schema.name() != "aten::native_dropout");
}

// What is kept and how it is scaled is drawn by dropping out of ones.
absl::StatusOr<Factors> dropoutFactors(const RuleCall& call, absl::string_view) {
  if (givesItsInput(call)) return likeInput(call);
  if (absl::Status status = checkContiguous(call); !status.ok()) return status;
  const bool inPlace = call.schema.is_mutable();
  Factors factors = likeInput(call);
  factors.programWrites = inPlace;
  factors.combined.push_back(
      {factors.all(),
       [dims = factors.inputs, inPlace](const RuleCall& planned, std::int64_t) -> absl::StatusOr<Program> {
         ProgramBuilder builder(absl::MakeConstSpan(planned.inputs), dims);
         const TensorMeta& meta = *planned.inputs[0];
         const std::uint32_t ones = builder.factory("aten::ones", whole(meta));
         std::vector<Value> arguments = planned.arguments;
         arguments[0] = ProgramBuilder::tensor(ones);
         std::vector<ProgramTensor> results;
         for (const TensorMeta* output : planned.outputs) results.push_back(whole(*output));
         const std::uint32_t drawn =
             builder.runAll(nameOf(planned.schema.operator_name()), std::move(arguments), results);
         const std::uint32_t scale = builder.placed(drawn, dims[0]);
         std::vector<std::uint32_t> outputs = {builder.run(inPlace ? "aten::mul_.Tensor" : "aten::mul.Tensor",
                                                           {ProgramBuilder::tensor(0), ProgramBuilder::tensor(scale)},
                                                           builder[0])};
         if (planned.outputs.size() > 1) outputs.push_back(builder.placed(drawn + 1, dims[0]));
         return builder.finish(std::move(outputs));
       },
       {}});
  return factors;
}

constexpr std::array kRules = std::to_array<Rule>({
    {"aten::rand_like", drawnFactors, ""},
    {"aten::randn_like", drawnFactors, ""},
    {"aten::randint_like", drawnFactors, ""},
    {"aten::uniform", drawnFactors, ""},
    {"aten::normal_", drawnFactors, ""},
    {"aten::normal_functional", drawnFactors, ""},
    {"aten::random", drawnFactors, ""},
    {"aten::exponential", drawnFactors, ""},
    {"aten::cauchy", drawnFactors, ""},
    {"aten::log_normal", drawnFactors, ""},
    {"aten::geometric", drawnFactors, ""},
    {"aten::bernoulli.p", drawnFactors, ""},
    {"aten::bernoulli_.float", drawnFactors, ""},
    {"aten::dropout", dropoutFactors, ""},
    {"aten::native_dropout", dropoutFactors, ""},
    {"aten::feature_dropout", dropoutFactors, ""},
});

}  // namespace

absl::Span<const Rule> randomRules() { return kRules; }

}  // namespace dtorch
