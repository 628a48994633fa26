#include "daemon/placement/planner.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "daemon/placement/rule.h"
#include "daemon/placement/signature.h"
#include "dispatch/own_operators.h"
#include "proto/codec.h"

namespace dtorch {
namespace {

// A list of thousands of inputs would bury the advice behind it.
constexpr std::size_t kDescribedInputs = 8;

std::string describe(absl::Span<const TensorLayout* const> inputs) {
  std::string text =
      absl::StrJoin(inputs.subspan(0, kDescribedInputs), ", ",
                    [](std::string* out, const TensorLayout* layout) { out->append(layout->toString()); });
  if (inputs.size() > kDescribedInputs) absl::StrAppend(&text, " and ", inputs.size() - kDescribedInputs, " more");
  return text;
}

// Factories whose elements are all alike: each rank makes its own part. The others are made whole, then converted.
constexpr std::array<absl::string_view, 4> kUniformFactories = {"aten::zeros", "aten::ones", "aten::full",
                                                                "aten::empty.memory_format"};

bool isUniformFactory(const std::string& name) {
  for (const absl::string_view factory : kUniformFactories) {
    if (factory == name) return true;
  }
  return false;
}

// Whether the operator adds up in the arithmetic in which its Partial inputs do: a bool's sum is an "or", a narrow
// integer's wraps around, and a cast to another dtype rounds each summand.
bool isLinearIn(const RuleCall& call, const std::vector<int>& inputs) {
  for (const int input : inputs) {
    const DType dtype = call.inputs[static_cast<std::size_t>(input)]->dtype;
    if (dtype == DType::kBool) return false;
    for (const TensorMeta& output : call.outputs) {
      if (output.dtype != dtype) return false;
    }
  }
  return true;
}

absl::StatusOr<std::vector<Signature>> signaturesFor(const OperatorTemplate& op, const RuleCall& call,
                                                     std::vector<int>* sizeArguments) {
  const Rule* rule = findRule(op.name);
  const char* exception = notPointwise(op.name);
  absl::StatusOr<Factors> factors = absl::UnimplementedError("it has no placement rule");
  if (rule != nullptr) {
    factors = rule->family(call, rule->detail);
  } else if (exception != nullptr) {
    factors = absl::UnimplementedError(exception);
  } else if (op.op.hasTag(at::Tag::pointwise)) {
    factors = pointwiseFactors(call, "");
  }
  if (!factors.ok()) return factors.status();
  *sizeArguments = factors->sizeArguments;
  std::erase_if(factors->linear, [&](const std::vector<int>& set) { return !isLinearIn(call, set); });
  return signaturesOf(*factors);
}

// An in-place operator must leave its tensor where it is.
bool keepsPlacement(const OperatorTemplate& op, const Signature& signature) {
  for (const auto& [output, input] : op.mutated) {
    if (signature.outputs[output] != signature.inputs[input]) return false;
  }
  return true;
}

const PlacedMesh* meshOf(const OperatorTemplate& op, absl::Span<const TensorLayout* const> inputs) {
  return inputs.empty() ? op.mesh : inputs[0]->mesh;
}

bool allReplicated(absl::Span<const TensorLayout* const> inputs) {
  return std::all_of(inputs.begin(), inputs.end(),
                     [](const TensorLayout* layout) { return isAllReplicate(layout->placements); });
}

// An operator that returns only what it writes to returns it as it is, but for its values.
std::vector<OutputMeta> ofMutated(const OperatorTemplate& op, absl::Span<const TensorLayout* const> inputs) {
  std::vector<OutputMeta> outputs(op.outputs);
  for (const auto& [output, input] : op.mutated) outputs[output] = {inputs[input]->meta, static_cast<int>(input)};
  return outputs;
}

absl::Status checkMeshes(const OperatorTemplate& op, absl::Span<const TensorLayout* const> inputs) {
  const PlacedMesh* mesh = meshOf(op, inputs);
  if (mesh == nullptr) return absl::InvalidArgumentError("it has no tensor input: the call must name a mesh");
  for (const TensorLayout* input : inputs) {
    if (input->mesh == mesh) continue;
    return absl::InvalidArgumentError(absl::StrCat("its inputs lie on different meshes, ", mesh->mesh.toString(),
                                                   " and ", input->mesh->mesh.toString()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PlannedOperator*> Planner::plan(const OperatorTemplate& op,
                                               absl::Span<const TensorLayout* const> inputs) {
  Key key;
  key.push_back(&op);
  for (const TensorLayout* input : inputs) key.push_back(input);
  if (const auto it = plans_.find(key); it != plans_.end()) {
    if (!it->second.error.ok()) return it->second.error;
    return it->second.plan.get();
  }
  return planNew(key, op, inputs);
}

absl::StatusOr<PlannedOperator*> Planner::planNew(const Key& key, const OperatorTemplate& op,
                                                  absl::Span<const TensorLayout* const> inputs) {
  if (absl::Status fits = checkMeshes(op, inputs); !fits.ok()) return fits;
  auto asked = asked_.find(key);
  if (asked == asked_.end()) {
    const std::uint64_t number = nextQuestion_++;
    asked_[key].number = number;
    questions_[number] = key;
    MetadataQuestion question{number, op.name, op.arguments, {}};
    for (const TensorLayout* input : inputs) question.inputs.push_back(input->meta);
    ask_(std::move(question));
    asked = asked_.find(key);
  }
  if (!asked->second.answer) return nullptr;
  MetadataAnswer answer = *std::move(asked->second.answer);
  asked_.erase(asked);
  // That a process could not be run says nothing about the call.
  if (absl::IsUnavailable(answer.status())) return answer.status();
  Planned& planned = plans_[key];
  absl::StatusOr<std::unique_ptr<PlannedOperator>> made = make(op, inputs, std::move(answer));
  planned.error = made.status();
  if (!made.ok()) return made.status();
  planned.plan = *std::move(made);
  bytes_ += planned.plan->wire.ByteSizeLong();
  return planned.plan.get();
}

void Planner::answered(std::uint64_t number, MetadataAnswer answer) {
  const auto it = questions_.find(number);
  if (it == questions_.end()) return;
  asked_[it->second].answer = std::move(answer);
  questions_.erase(it);
}

PlanId Planner::forget() {
  plans_.clear();
  asked_.clear();
  questions_.clear();
  conversions_.clear();
  bytes_ = 0;
  return nextId_;
}

std::unique_ptr<PlannedOperator> Planner::start(const PlacedMesh* mesh, std::size_t inputs, const std::string& name) {
  auto plan = std::make_unique<PlannedOperator>();
  plan->id = nextId_++;
  plan->mesh = mesh;
  plan->wire.set_id(plan->id);
  plan->wire.set_inputs(static_cast<std::uint32_t>(inputs));
  plan->wire.set_name(name);
  toWire(mesh->mesh, plan->wire.mutable_mesh());
  return plan;
}

void Planner::addOutput(PlannedOperator* plan, std::uint32_t slot, TensorLayout layout, int alias) {
  plan->wire.add_outputs(slot);
  plan->wire.add_output_aliases(alias);
  toWire(layout.meta, plan->wire.add_output_metas());
  toWire(layout.placements, plan->wire.add_output_placements()->mutable_placements());
  plan->outputs.push_back(layouts_->intern(std::move(layout)));
}

absl::StatusOr<std::unique_ptr<PlannedOperator>> Planner::make(const OperatorTemplate& op,
                                                               absl::Span<const TensorLayout* const> inputs,
                                                               MetadataAnswer metadata) {
  if (!metadata.ok()) return metadata.status();
  if (!*metadata && op.mutated.size() == op.outputs) *metadata = ofMutated(op, inputs);
  if (!*metadata) return makeUnknown(op, inputs);
  const PlacedMesh* mesh = meshOf(op, inputs);
  std::vector<const TensorMeta*> metas;
  for (const TensorLayout* input : inputs) metas.push_back(&input->meta);
  std::vector<TensorMeta> outputs;
  for (OutputMeta& output : **metadata) outputs.push_back(std::move(output.meta));
  if (outputs.size() != op.outputs) {
    return absl::InvalidArgumentError(
        absl::StrCat("it returns ", outputs.size(), " tensors, the call expects ", op.outputs));
  }

  for (const auto& [output, input] : op.mutated) {
    // Its tensor stays where it lies, whatever strides a Meta kernel gives its result.
    if (outputs[output].dtype == inputs[input]->meta.dtype && outputs[output].shape == inputs[input]->meta.shape) {
      outputs[output].strides = inputs[input]->meta.strides;
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat("it would turn its tensor from ", inputs[input]->meta.toString(),
                                                   " to ", outputs[output].toString(), " in place"));
  }

  const int meshDims = mesh->mesh.dims();
  std::vector<Placements> placed(outputs.size());
  std::vector<int> sizeArguments;
  Placements wanted;  // of a factory
  if (tellsOfItsRank(op.name)) {
    if (!op.placements.empty()) return absl::InvalidArgumentError("its rows lie where they belong: give no placements");
    wanted = Placements(static_cast<std::size_t>(meshDims), Placement::shard(0));
    outputs[0] =
        *makeMeta(outputs[0].dtype, {static_cast<std::int64_t>(mesh->mesh.ranks().size()), outputs[0].shape[1]});
    placed[0] = wanted;
  } else if (inputs.empty()) {
    wanted = op.placements.empty() ? allReplicate(meshDims) : op.placements;
    const int tensorDims = outputs.empty() ? 0 : static_cast<int>(outputs[0].shape.size());
    absl::StatusOr<Placements> normal = normalize(wanted, meshDims, tensorDims);
    if (!normal.ok()) return normal.status();
    wanted = *std::move(normal);
    const bool partial = std::any_of(wanted.begin(), wanted.end(), [](const Placement& p) { return p.isPartial(); });
    const bool inPlace = isUniformFactory(op.name) && !partial;
    if (inPlace) sizeArguments = {0};
    for (Placements& p : placed) p = inPlace ? wanted : allReplicate(meshDims);
  } else if (allReplicated(inputs)) {
    // Every rank computes the same from the same: right for any deterministic operator, rule or not.
    for (Placements& p : placed) p = allReplicate(meshDims);
  } else if (op.op.hasTag(at::Tag::nondeterministic_seeded)) {
    return absl::UnimplementedError(absl::StrCat("inputs ", describe(inputs),
                                                 ": it draws random numbers, which must be the same however its inputs "
                                                 "are placed; redistribute them to Replicate first"));
  } else {
    const RuleCall call{op.op.schema(), op.arguments, metas, outputs};
    absl::StatusOr<std::vector<Signature>> signatures = signaturesFor(op, call, &sizeArguments);
    if (!signatures.ok()) {
      return absl::Status(signatures.status().code(),
                          absl::StrCat("inputs ", describe(inputs), ": ", signatures.status().message(),
                                       "; redistribute them to Replicate first"));
    }
    for (int m = 0; m < meshDims; ++m) {
      const Signature* match = nullptr;
      for (const Signature& signature : *signatures) {
        bool same = keepsPlacement(op, signature);
        for (std::size_t i = 0; same && i < inputs.size(); ++i) {
          same = inputs[i]->placements[static_cast<std::size_t>(m)] == signature.inputs[i];
        }
        if (same) match = &signature;
        if (match != nullptr) break;
      }
      if (match == nullptr) {
        std::vector<std::string> accepted;
        for (const Signature& signature : *signatures) {
          if (keepsPlacement(op, signature)) accepted.push_back(signature.toString());
        }
        return absl::InvalidArgumentError(
            absl::StrCat("inputs ", describe(inputs), " are placed as no rule accepts on mesh dimension ", m,
                         "; accepted: ", absl::StrJoin(accepted, " | "), "; redistribute an input"));
      }
      for (std::size_t o = 0; o < placed.size(); ++o) placed[o].push_back(match->outputs[o]);
    }
  }

  std::unique_ptr<PlannedOperator> plan = start(mesh, inputs.size(), op.name);
  v1::KernelStep* kernel = addKernel(plan.get(), op);
  for (std::size_t a = 0; a < op.arguments.size(); ++a) {
    const bool isSize =
        std::find(sizeArguments.begin(), sizeArguments.end(), static_cast<int>(a)) != sizeArguments.end();
    toWire(isSize ? Value(LocalSizes{outputs[0].shape, placed[0]}) : op.arguments[a], kernel->add_arguments());
  }
  auto slot = static_cast<std::uint32_t>(inputs.size());
  for (std::size_t o = 0; o < outputs.size(); ++o) {
    std::uint32_t result = slot + static_cast<std::uint32_t>(o);
    if (inputs.empty() && placed[o] != wanted) {
      v1::ConvertStep* convert = plan->wire.add_steps()->mutable_convert();
      convert->set_input(result);
      convert->mutable_shape()->Add(outputs[o].shape.begin(), outputs[o].shape.end());
      toWire(placed[o], convert->mutable_from());
      toWire(wanted, convert->mutable_to());
      result = slot + op.outputs + static_cast<std::uint32_t>(o);
      placed[o] = wanted;
    }
    const bool converted = result != slot + static_cast<std::uint32_t>(o);
    addOutput(plan.get(), result, {outputs[o], mesh, placed[o]}, converted ? -1 : (**metadata)[o].alias);
  }
  return plan;
}

absl::StatusOr<std::unique_ptr<PlannedOperator>> Planner::makeUnknown(const OperatorTemplate& op,
                                                                      absl::Span<const TensorLayout* const> inputs) {
  if (!allReplicated(inputs) || std::any_of(op.placements.begin(), op.placements.end(),
                                            [](const Placement& placement) { return !placement.isReplicate(); })) {
    return absl::UnimplementedError(absl::StrCat(
        "inputs ", describe(inputs), ": only a run tells its result's shape; redistribute them to Replicate first"));
  }
  std::unique_ptr<PlannedOperator> plan = start(meshOf(op, inputs), inputs.size(), op.name);
  plan->unknownOutputs = true;
  plan->wire.set_report_outputs(true);
  v1::KernelStep* kernel = addKernel(plan.get(), op);
  for (const Value& argument : op.arguments) toWire(argument, kernel->add_arguments());
  const auto first = static_cast<std::uint32_t>(inputs.size());
  for (std::uint32_t o = 0; o < op.outputs; ++o) plan->wire.add_outputs(first + o);
  return plan;
}

v1::KernelStep* Planner::addKernel(PlannedOperator* plan, const OperatorTemplate& op) {
  v1::KernelStep* kernel = plan->wire.add_steps()->mutable_kernel();
  kernel->set_operator_name(op.name);
  kernel->set_outputs(op.outputs);
  kernel->set_mutates(!op.mutated.empty());
  kernel->set_random(op.op.hasTag(at::Tag::nondeterministic_seeded));
  return kernel;
}

void Planner::learn(const OperatorTemplate& op, absl::Span<const TensorLayout* const> inputs,
                    std::vector<OutputMeta> outputs) {
  if (op.op.hasTag(at::Tag::dynamic_output_shape) || op.op.hasTag(at::Tag::data_dependent_output)) return;
  Key key;
  key.push_back(&op);
  for (const TensorLayout* input : inputs) key.push_back(input);
  absl::StatusOr<std::unique_ptr<PlannedOperator>> made = make(op, inputs, OutputMetas(std::move(outputs)));
  if (!made.ok()) return;
  bytes_ += (*made)->wire.ByteSizeLong();
  plans_[key] = {absl::OkStatus(), *std::move(made)};
}

absl::StatusOr<PlannedOperator*> Planner::planRedistribute(const TensorLayout* input, const Placements& to) {
  RedistributeKey key{input, to};
  if (const auto it = conversions_.find(key); it != conversions_.end()) return it->second.get();
  std::unique_ptr<PlannedOperator> plan = start(input->mesh, 1, "redistribute");
  if (input->placements == to) {
    // A tensor of its own, as any other redistribution gives.
    v1::KernelStep* clone = plan->wire.add_steps()->mutable_kernel();
    clone->set_operator_name("aten::clone");
    clone->set_outputs(1);
    toWire(Value(TensorArg{0}), clone->add_arguments());
    toWire(Value(MemoryFormat::kContiguous), clone->add_arguments());
  } else {
    v1::ConvertStep* convert = plan->wire.add_steps()->mutable_convert();
    convert->set_input(0);
    convert->mutable_shape()->Add(input->meta.shape.begin(), input->meta.shape.end());
    toWire(input->placements, convert->mutable_from());
    toWire(to, convert->mutable_to());
  }
  TensorMeta meta = input->meta;
  meta.strides = contiguousStrides(meta.shape);
  addOutput(plan.get(), 1, {std::move(meta), input->mesh, to}, -1);
  std::unique_ptr<PlannedOperator>& kept = conversions_[key];
  kept = std::move(plan);
  return kept.get();
}

}  // namespace dtorch
