#include "daemon/placement/planner.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "core/conversion.h"
#include "daemon/placement/explanation.h"
#include "daemon/placement/placed_operator.h"
#include "daemon/placement/program.h"
#include "dispatch/binding.h"
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
  for (const auto& [output, input] : op.returned) outputs[output] = {inputs[input]->meta, static_cast<int>(input)};
  return outputs;
}

// Views of tensors that are moved are of what was moved: they share no memory with the call's input.
void cutViews(const std::vector<Redistribution>& redistributions, std::vector<int>* aliases,
              std::vector<CopiedView>* copied) {
  for (std::uint32_t o = 0; o < aliases->size(); ++o) {
    const int input = (*aliases)[o];
    const bool isMoved = std::any_of(redistributions.begin(), redistributions.end(), [&](const Redistribution& moved) {
      return static_cast<int>(moved.input) == input;
    });
    if (input < 0 || !isMoved) continue;
    copied->push_back({o, static_cast<std::uint32_t>(input)});
    (*aliases)[o] = -1;
  }
}

// Whether its elements lie without a gap, but not in row-major order.
bool isPermuted(const TensorMeta& meta) {
  const std::vector<std::int64_t> strides = stridesInOrderOf(meta, meta.shape);
  const std::vector<std::int64_t> rowMajor = contiguousStrides(meta.shape);
  for (std::size_t d = 0; d < strides.size(); ++d) {
    if (meta.shape[d] != 1 && strides[d] != rowMajor[d]) return true;
  }
  return false;
}

std::vector<int> aliasesOf(const std::vector<OutputMeta>& outputs) {
  std::vector<int> aliases;
  for (const OutputMeta& output : outputs) aliases.push_back(output.alias);
  return aliases;
}

const char* nameOf(MoveFor purpose) {
  switch (purpose) {
    case MoveFor::kRedistribute:
      return "redistribute";
    case MoveFor::kGet:
      return "get";
    default:
      return "gradient";
  }
}

// `value` with the tensors' numbers replaced by their slots.
Value renumbered(const Value& value, const std::vector<std::uint32_t>& slots) {
  if (const auto* tensor = value.as<TensorArg>()) return TensorArg{slots[tensor->index]};
  std::optional<TensorListArg> list = tensorListOf(value);
  if (!list || list->indices.empty()) return value;
  for (auto& index : list->indices) {
    if (index) index = slots[*index];
  }
  return *std::move(list);
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

Planner::Key Planner::keyOf(const OperatorTemplate& op, absl::Span<const TensorLayout* const> inputs,
                            const RuleBook& rules, bool implicit) {
  Key key;
  key.push_back(&op);
  // Neither is an input's layout.
  if (implicit) key.push_back(nullptr);
  if (rules.isFor(op.name)) key.push_back(&rules);
  for (const TensorLayout* input : inputs) key.push_back(input);
  return key;
}

absl::StatusOr<PlannedOperator*> Planner::plan(const OperatorTemplate& op, absl::Span<const TensorLayout* const> inputs,
                                               const RuleBook& rules, bool implicit) {
  const Key key = keyOf(op, inputs, rules, implicit);
  if (const auto it = plans_.find(key); it != plans_.end()) {
    if (!it->second.error.ok()) return it->second.error;
    return it->second.plan.get();
  }
  return planNew(key, op, inputs, rules, implicit);
}

absl::StatusOr<PlannedOperator*> Planner::planNew(const Key& key, const OperatorTemplate& op,
                                                  absl::Span<const TensorLayout* const> inputs, const RuleBook& rules,
                                                  bool implicit) {
  absl::StatusOr<std::optional<MetadataAnswer>> metadata = metadataOf(key, op, inputs);
  if (!metadata.ok()) return metadata.status();
  if (!*metadata) return nullptr;
  std::vector<int> views;
  if (const MetadataAnswer& known = **metadata; known.ok() && *known) views = aliasesOf(**known);
  Planned& planned = plans_[key];
  planned.views = std::move(views);
  absl::StatusOr<std::unique_ptr<PlannedOperator>> made = make(op, inputs, **std::move(metadata), rules, implicit);
  planned.error = made.status();
  if (!made.ok()) return made.status();
  planned.plan = *std::move(made);
  bytes_ += planned.plan->wire.ByteSizeLong();
  return planned.plan.get();
}

std::vector<int> Planner::viewsOf(const OperatorTemplate& op, absl::Span<const TensorLayout* const> inputs,
                                  const RuleBook& rules, bool implicit) const {
  const auto it = plans_.find(keyOf(op, inputs, rules, implicit));
  return it == plans_.end() ? std::vector<int>() : it->second.views;
}

absl::StatusOr<std::optional<MetadataAnswer>> Planner::metadataOf(const Key& key, const OperatorTemplate& op,
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
  if (!asked->second.answer) return std::optional<MetadataAnswer>();
  MetadataAnswer answer = *std::move(asked->second.answer);
  asked_.erase(asked);
  // That a process could not be run says nothing about the call.
  if (absl::IsUnavailable(answer.status())) return answer.status();
  return std::optional<MetadataAnswer>(std::move(answer));
}

absl::StatusOr<std::optional<v1::Explanation>> Planner::explain(const OperatorTemplate& op,
                                                                absl::Span<const TensorLayout* const> inputs,
                                                                const RuleBook& rules) {
  absl::StatusOr<std::optional<MetadataAnswer>> asked = metadataOf(keyOf(op, inputs, rules, false), op, inputs);
  if (!asked.ok()) return asked.status();
  if (!*asked) return std::optional<v1::Explanation>();
  MetadataAnswer metadata = **std::move(asked);
  if (!metadata.ok()) return metadata.status();
  if (!*metadata && op.returned.size() == op.outputs) *metadata = ofMutated(op, inputs);
  if (!*metadata || inputs.empty()) {
    return std::optional<v1::Explanation>(explainReplicated(
        inputs, op.outputs, meshOf(op, inputs), absl::UnimplementedError("only a run tells its result's shape")));
  }
  absl::StatusOr<std::vector<TensorMeta>> outputs = outputsOf(op, inputs, **metadata);
  if (!outputs.ok()) return outputs.status();
  absl::StatusOr<OperatorRule> rule = OperatorRule::create(op, inputs, *outputs, meshOf(op, inputs), rules);
  if (!rule.ok())
    return std::optional<v1::Explanation>(explainReplicated(inputs, op.outputs, meshOf(op, inputs), rule.status()));
  return std::optional<v1::Explanation>(dtorch::explain(*rule, inputs.size(), op.outputs));
}

void Planner::answered(std::uint64_t number, MetadataAnswer answer) {
  const auto it = questions_.find(number);
  if (it == questions_.end()) return;
  asked_[it->second].answer = std::move(answer);
  questions_.erase(it);
}

void Planner::rulesChanged(const RuleBook& rules) {
  const auto isBy = [&](const Key& key) {
    const auto layouts = key.begin() + std::min<std::ptrdiff_t>(3, std::ssize(key));  // at the earliest: see keyOf()
    return std::find(key.begin(), layouts, &rules) != layouts;
  };
  absl::erase_if(plans_, [&](const auto& entry) { return isBy(entry.first); });
  absl::erase_if(asked_, [&](const auto& entry) { return isBy(entry.first); });
  absl::erase_if(questions_, [&](const auto& entry) { return isBy(entry.second); });
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
  plan->slots = static_cast<std::uint32_t>(inputs);
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

absl::StatusOr<std::vector<TensorMeta>> Planner::outputsOf(const OperatorTemplate& op,
                                                           absl::Span<const TensorLayout* const> inputs,
                                                           const std::vector<OutputMeta>& metadata) {
  std::vector<TensorMeta> outputs;
  for (const OutputMeta& output : metadata) outputs.push_back(output.meta);
  if (outputs.size() != op.outputs) {
    return absl::InvalidArgumentError(
        absl::StrCat("it returns ", outputs.size(), " tensors, the call expects ", op.outputs));
  }
  for (const auto& [output, input] : op.returned) {
    // Its tensor stays where it lies, whatever strides a Meta kernel gives its result.
    if (outputs[output].dtype == inputs[input]->meta.dtype && outputs[output].shape == inputs[input]->meta.shape) {
      outputs[output].strides = inputs[input]->meta.strides;
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat("it would turn its tensor from ", inputs[input]->meta.toString(),
                                                   " to ", outputs[output].toString(), " in place"));
  }
  return outputs;
}

absl::StatusOr<std::unique_ptr<PlannedOperator>> Planner::make(const OperatorTemplate& op,
                                                               absl::Span<const TensorLayout* const> inputs,
                                                               MetadataAnswer metadata, const RuleBook& rules,
                                                               bool implicit) {
  if (!metadata.ok()) return metadata.status();
  if (!*metadata && op.returned.size() == op.outputs) *metadata = ofMutated(op, inputs);
  if (!*metadata) return makeUnknown(op, inputs, implicit);
  absl::StatusOr<std::vector<TensorMeta>> outputs = outputsOf(op, inputs, **metadata);
  if (!outputs.ok()) return outputs.status();
  if (inputs.empty()) return makeFactory(op, *outputs);
  const PlacedMesh* mesh = meshOf(op, inputs);
  std::vector<int> aliases;
  for (const OutputMeta& output : **metadata) aliases.push_back(output.alias);
  const std::vector<Placements> everywhere(outputs->size(), allReplicate(mesh->mesh.dims()));
  if (allReplicated(inputs)) {
    // Every rank computes the same from the same: right for any deterministic operator, rule or not.
    std::unique_ptr<PlannedOperator> plan = start(mesh, inputs.size(), op.name);
    addKernel(plan.get(), op, op.arguments, op.outputs);
    addOutputs(plan.get(), *outputs, everywhere, aliases);
    return plan;
  }
  absl::StatusOr<OperatorRule> rule = OperatorRule::create(op, inputs, *outputs, mesh, rules);
  if (implicit) {
    // What runs as it lies is left there.
    absl::StatusOr<Candidate> candidate = rule.ok() ? rule->match() : rule.status();
    if (rule.ok() && !candidate.ok()) candidate = rule->cheapest();
    if (candidate.ok()) return makeRuled(op, inputs, *outputs, aliases, *rule, *candidate);
    std::unique_ptr<PlannedOperator> plan = start(mesh, inputs.size(), op.name);
    absl::StatusOr<std::vector<Value>> arguments = replicated(plan.get(), op, inputs);
    if (!arguments.ok()) return arguments.status();
    cutViews(plan->redistributions, &aliases, &plan->copiedViews);
    addKernel(plan.get(), op, *arguments, op.outputs);
    addOutputs(plan.get(), *outputs, everywhere, aliases);
    return plan;
  }
  if (!rule.ok()) {
    return absl::Status(rule.status().code(), absl::StrCat("inputs ", describe(inputs), ": ", rule.status().message(),
                                                           "; redistribute them to Replicate first"));
  }
  absl::StatusOr<Candidate> candidate = rule->match();
  if (!candidate.ok()) {
    return absl::Status(
        candidate.status().code(),
        absl::StrCat("inputs ", describe(inputs), " ", candidate.status().message(), "; redistribute an input"));
  }
  return makeRuled(op, inputs, *outputs, aliases, *rule, *candidate);
}

absl::StatusOr<std::unique_ptr<PlannedOperator>> Planner::makeFactory(const OperatorTemplate& op,
                                                                      const std::vector<TensorMeta>& outputs) {
  const int meshDims = op.mesh->mesh.dims();
  if (tellsOfItsRank(op.name)) {
    if (!op.placements.empty()) return absl::InvalidArgumentError("its rows lie where they belong: give no placements");
    std::unique_ptr<PlannedOperator> plan = start(op.mesh, 0, op.name);
    const TensorMeta rows =
        *makeMeta(outputs[0].dtype, {static_cast<std::int64_t>(op.mesh->mesh.ranks().size()), outputs[0].shape[1]});
    addOutput(plan.get(), addKernel(plan.get(), op, op.arguments, op.outputs),
              {rows, op.mesh, Placements(static_cast<std::size_t>(meshDims), Placement::shard(0))}, -1);
    return plan;
  }
  const int tensorDims = outputs.empty() ? 0 : static_cast<int>(outputs[0].shape.size());
  absl::StatusOr<Placements> wanted =
      normalize(op.placements.empty() ? allReplicate(meshDims) : op.placements, meshDims, tensorDims);
  if (!wanted.ok()) return wanted.status();
  for (const TensorMeta& output : outputs) {
    if (absl::Status reducible = checkReducible(*wanted, output.dtype); !reducible.ok()) return reducible;
  }
  const bool partial = std::any_of(wanted->begin(), wanted->end(), [](const Placement& p) { return p.isPartial(); });
  const bool inPlace = isUniformFactory(op.name) && !partial;
  std::unique_ptr<PlannedOperator> plan = start(op.mesh, 0, op.name);
  std::vector<Value> arguments = op.arguments;
  if (inPlace) arguments[0] = Value(LocalSizes{outputs[0].shape, *wanted});
  addKernel(plan.get(), op, arguments, op.outputs);
  const Placements made = inPlace ? *wanted : allReplicate(meshDims);
  for (std::uint32_t o = 0; o < op.outputs; ++o) {
    const std::uint32_t slot = made == *wanted ? o : addMove(plan.get(), o, outputs[o], made, *wanted);
    addOutput(plan.get(), slot, {outputs[o], op.mesh, *wanted}, -1);
  }
  return plan;
}

absl::StatusOr<std::unique_ptr<PlannedOperator>> Planner::makeRuled(const OperatorTemplate& op,
                                                                    absl::Span<const TensorLayout* const> inputs,
                                                                    const std::vector<TensorMeta>& outputs,
                                                                    std::vector<int> aliases, const OperatorRule& rule,
                                                                    const Candidate& candidate) {
  const PlacedMesh* mesh = meshOf(op, inputs);
  std::unique_ptr<PlannedOperator> plan = start(mesh, inputs.size(), op.name);
  std::vector<std::uint32_t> slots(inputs.size());
  for (std::uint32_t i = 0; i < slots.size(); ++i) slots[i] = i;
  cutViews(candidate.redistributions, &aliases, &plan->copiedViews);
  redistribute(plan.get(), inputs, candidate.redistributions, &slots);

  std::vector<Placements> placed(outputs.size(), allReplicate(mesh->mesh.dims()));
  for (std::size_t e = 0; e < candidate.rows.size(); ++e) {
    const RuleElement& element = rule.elements()[e].element;
    for (std::size_t o = 0; o < element.outputs.size(); ++o) {
      if (element.outputs[o] == RuleElement::kNoOutput) continue;
      placed[element.outputs[o]] = OperatorRule::outputPlacements(candidate.rows[e], o);
    }
  }
  std::vector<std::unique_ptr<Program>> programs;
  for (std::size_t e = 0; e < candidate.rows.size(); ++e) {
    absl::StatusOr<std::unique_ptr<Program>> program = rule.program(candidate, e);
    if (!program.ok()) return program.status();
    programs.push_back(*std::move(program));
  }
  if (std::any_of(programs.begin(), programs.end(), [](const auto& program) { return program != nullptr; })) {
    std::vector<std::uint32_t> results(outputs.size());
    for (std::size_t e = 0; e < programs.size(); ++e) {
      const RuledElement& ruled = rule.elements()[e];
      absl::StatusOr<std::vector<std::uint32_t>> made =
          programs[e] == nullptr
              ? addElement(plan.get(), op, rule.elements(), e, slots)
              : addProgram(plan.get(), *programs[e], ruled.factors, candidate.rows[e], ruled.element.inputs, slots);
      if (!made.ok()) return made.status();
      for (std::size_t o = 0; o < ruled.element.outputs.size(); ++o) {
        if (ruled.element.outputs[o] != RuleElement::kNoOutput) results[ruled.element.outputs[o]] = (*made)[o];
      }
    }
    for (std::size_t o = 0; o < outputs.size(); ++o) {
      addOutput(plan.get(), results[o], {outputs[o], mesh, placed[o]}, op.written.empty() ? -1 : aliases[o]);
    }
    return plan;
  }
  std::vector<Value> arguments;
  for (const Value& argument : op.arguments) arguments.push_back(renumbered(argument, slots));
  for (const Factors::SizeArgument& size : rule.elements()[0].factors.sizes) {
    const auto output = static_cast<std::size_t>(size.output);
    Value& argument = arguments[static_cast<std::size_t>(size.argument)];
    if (size.dim < 0) {
      argument = Value(LocalSizes{outputs[output].shape, placed[output]});
    } else {
      argument = Value(LocalRange{outputs[output].shape, placed[output], size.dim, LocalRange::Part::kLength});
    }
  }
  addKernel(plan.get(), op, arguments, op.outputs);
  addOutputs(plan.get(), outputs, placed, aliases);
  return plan;
}

std::vector<std::uint32_t> Planner::addElement(PlannedOperator* plan, const OperatorTemplate& op,
                                               absl::Span<const RuledElement> elements, std::size_t place,
                                               const std::vector<std::uint32_t>& slots) {
  std::vector<Value> arguments;
  for (const Value& argument : op.arguments) {
    if (std::optional<TensorListArg> list = tensorListOf(argument); list && list->indices.size() == elements.size()) {
      arguments.push_back(renumbered(Value(TensorListArg{{list->indices[place]}}), slots));
    } else if (const auto* numbers = argument.as<std::vector<Value>>();
               numbers != nullptr && numbers->size() == elements.size()) {
      arguments.push_back(Value(std::vector<Value>{(*numbers)[place]}));
    } else {
      arguments.push_back(renumbered(argument, slots));
    }
  }
  const auto results = static_cast<std::uint32_t>(op.outputs / elements.size());
  const std::uint32_t first = addKernel(plan, op, arguments, results);
  std::vector<std::uint32_t> made(results);
  std::iota(made.begin(), made.end(), first);
  return made;
}

absl::StatusOr<std::vector<std::uint32_t>> Planner::addProgram(PlannedOperator* plan, const Program& program,
                                                               const Factors& factors,
                                                               const std::vector<const Signature*>& rows,
                                                               const std::vector<std::uint32_t>& inputs,
                                                               const std::vector<std::uint32_t>& inputSlots) {
  std::vector<std::uint32_t> slots;  // of the program's tensors
  for (const std::uint32_t input : inputs) slots.push_back(inputSlots[input]);
  const auto isCombined = [&](int factor) {
    return std::any_of(factors.combined.begin(), factors.combined.end(), [&](const Factors::Combined& combined) {
      return std::find(combined.factors.begin(), combined.factors.end(), factor) != combined.factors.end();
    });
  };
  std::vector<Placements> placements;
  for (const ProgramTensor& tensor : program.tensors) {
    Placements& of = placements.emplace_back();
    for (const Signature* row : rows) of.push_back(tensor.placement(row->factor, isCombined(row->factor)));
  }
  for (const ProgramStep& step : program.steps) {
    const auto first = static_cast<std::uint32_t>(slots.size());
    if (step.op.empty()) {
      const std::uint32_t from = step.arguments.positional[0].as<TensorArg>()->index;
      // Its row may not shard what the program is for on any mesh dimension where it would change something.
      slots.push_back(placements[from] == placements[first] ? slots[from]
                                                            : addMove(plan, slots[from], program.tensors[from].meta,
                                                                      placements[from], placements[first]));
      continue;
    }
    absl::StatusOr<c10::OperatorHandle> op = findOperator(step.op);
    if (!op.ok()) return op.status();
    Arguments given = step.arguments;
    for (const ProgramStep::LocalNumber& number : step.localNumbers) {
      given.positional[number.argument] = Value(
          LocalRange{program.tensors[number.tensor].meta.shape, placements[number.tensor], number.dim, number.part});
    }
    // Those of the call itself are complete already.
    const bool complete = given.named.empty() && given.positional.size() == op->schema().arguments().size();
    absl::StatusOr<std::vector<Value>> arguments =
        complete ? std::move(given.positional) : bindArguments(op->schema(), given);
    if (!arguments.ok()) return arguments.status();
    v1::KernelStep* kernel = plan->wire.add_steps()->mutable_kernel();
    kernel->set_operator_name(step.op);
    kernel->set_outputs(step.results);
    kernel->set_random(op->hasTag(at::Tag::nondeterministic_seeded));
    for (const Value& argument : *arguments) toWire(renumbered(argument, slots), kernel->add_arguments());
    for (std::uint32_t r = 0; r < step.results; ++r) slots.push_back(plan->slots++);
  }
  std::vector<std::uint32_t> results;
  for (const std::uint32_t output : program.outputs) results.push_back(slots[output]);
  return results;
}

void Planner::redistribute(PlannedOperator* plan, absl::Span<const TensorLayout* const> inputs,
                           std::vector<Redistribution> redistributions, std::vector<std::uint32_t>* slots) {
  for (const Redistribution& moved : redistributions) {
    const TensorMeta& meta = inputs[moved.input]->meta;
    std::uint32_t& slot = (*slots)[moved.input];
    slot = addConversion(plan, moved.input, meta.shape, moved.from, moved.to);
    // What kernels draw, and the strides of what they return, go by those of their inputs.
    if (isAllReplicate(moved.to) && isPermuted(meta)) slot = addStrides(plan, slot, meta);
  }
  plan->redistributions = std::move(redistributions);
}

std::uint32_t Planner::addStrides(PlannedOperator* plan, std::uint32_t slot, const TensorMeta& meta) {
  v1::KernelStep* made = plan->wire.add_steps()->mutable_kernel();
  made->set_operator_name("aten::empty_strided");
  made->set_outputs(1);
  for (const Value& argument : {Value(meta.shape), Value(meta.strides), Value(meta.dtype), Value(), Value(), Value()}) {
    toWire(argument, made->add_arguments());
  }
  const std::uint32_t strided = plan->slots++;
  v1::KernelStep* copy = plan->wire.add_steps()->mutable_kernel();
  copy->set_operator_name("aten::copy_");
  copy->set_outputs(1);
  for (const Value& argument : {Value(TensorArg{strided}), Value(TensorArg{slot}), Value(false)}) {
    toWire(argument, copy->add_arguments());
  }
  return plan->slots++;
}

absl::StatusOr<std::vector<Value>> Planner::replicated(PlannedOperator* plan, const OperatorTemplate& op,
                                                       absl::Span<const TensorLayout* const> inputs) {
  std::vector<std::uint32_t> slots(inputs.size());
  std::vector<Redistribution> redistributions;
  for (std::uint32_t i = 0; i < slots.size(); ++i) {
    slots[i] = i;
    const Placements everywhere = allReplicate(inputs[i]->mesh->mesh.dims());
    if (inputs[i]->placements == everywhere) continue;
    if (std::find(op.written.begin(), op.written.end(), i) != op.written.end()) {
      return absl::UnimplementedError(absl::StrCat("inputs ", describe(inputs),
                                                   ": it writes to a tensor that it could only write to if that were "
                                                   "Replicate; redistribute it first"));
    }
    redistributions.push_back(
        Redistribution::of(i, inputs[i]->meta, inputs[i]->mesh->mesh, inputs[i]->placements, everywhere));
  }
  redistribute(plan, inputs, std::move(redistributions), &slots);
  std::vector<Value> arguments;
  for (const Value& argument : op.arguments) arguments.push_back(renumbered(argument, slots));
  return arguments;
}

absl::StatusOr<std::unique_ptr<PlannedOperator>> Planner::makeUnknown(const OperatorTemplate& op,
                                                                      absl::Span<const TensorLayout* const> inputs,
                                                                      bool implicit) {
  if ((!implicit && !allReplicated(inputs)) ||
      std::any_of(op.placements.begin(), op.placements.end(),
                  [](const Placement& placement) { return !placement.isReplicate(); })) {
    return absl::UnimplementedError(absl::StrCat(
        "inputs ", describe(inputs), ": only a run tells its result's shape; redistribute them to Replicate first"));
  }
  std::unique_ptr<PlannedOperator> plan = start(meshOf(op, inputs), inputs.size(), op.name);
  plan->unknownOutputs = true;
  plan->wire.set_report_outputs(true);
  absl::StatusOr<std::vector<Value>> arguments = replicated(plan.get(), op, inputs);
  if (!arguments.ok()) return arguments.status();
  const std::uint32_t first = addKernel(plan.get(), op, *arguments, op.outputs);
  for (std::uint32_t o = 0; o < op.outputs; ++o) plan->wire.add_outputs(first + o);
  return plan;
}

std::uint32_t Planner::addKernel(PlannedOperator* plan, const OperatorTemplate& op, const std::vector<Value>& arguments,
                                 std::uint32_t results) {
  v1::KernelStep* kernel = plan->wire.add_steps()->mutable_kernel();
  kernel->set_operator_name(op.name);
  kernel->set_outputs(results);
  kernel->set_mutates(!op.written.empty());
  kernel->set_random(op.op.hasTag(at::Tag::nondeterministic_seeded));
  for (const Value& argument : arguments) toWire(argument, kernel->add_arguments());
  plan->slots += results;
  return plan->slots - results;
}

std::uint32_t Planner::addMove(PlannedOperator* plan, std::uint32_t slot, const TensorMeta& meta,
                               const Placements& from, const Placements& to) {
  Redistribution moved = Redistribution::of(slot, meta, plan->mesh->mesh, from, to);
  if (!moved.collectives.empty()) plan->innerMoves.push_back(std::move(moved));
  return addConversion(plan, slot, meta.shape, from, to);
}

std::uint32_t Planner::addConversion(PlannedOperator* plan, std::uint32_t slot, const std::vector<std::int64_t>& shape,
                                     const Placements& from, const Placements& to) {
  v1::ConvertStep* convert = plan->wire.add_steps()->mutable_convert();
  convert->set_input(slot);
  convert->mutable_shape()->Add(shape.begin(), shape.end());
  toWire(from, convert->mutable_from());
  toWire(to, convert->mutable_to());
  return plan->slots++;
}

// The results of the last kernel.
void Planner::addOutputs(PlannedOperator* plan, const std::vector<TensorMeta>& outputs,
                         const std::vector<Placements>& placed, const std::vector<int>& aliases) {
  const std::uint32_t first = plan->slots - static_cast<std::uint32_t>(outputs.size());
  for (std::size_t o = 0; o < outputs.size(); ++o) {
    addOutput(plan, first + static_cast<std::uint32_t>(o), {outputs[o], plan->mesh, placed[o]}, aliases[o]);
  }
}

void Planner::learn(const OperatorTemplate& op, absl::Span<const TensorLayout* const> inputs, const RuleBook& rules,
                    bool implicit, std::vector<OutputMeta> outputs) {
  if (op.op.hasTag(at::Tag::dynamic_output_shape) || op.op.hasTag(at::Tag::data_dependent_output)) return;
  std::vector<int> views = aliasesOf(outputs);
  absl::StatusOr<std::unique_ptr<PlannedOperator>> made =
      make(op, inputs, OutputMetas(std::move(outputs)), rules, implicit);
  if (!made.ok()) return;
  bytes_ += (*made)->wire.ByteSizeLong();
  plans_[keyOf(op, inputs, rules, implicit)] = {absl::OkStatus(), *std::move(made), std::move(views)};
}

absl::StatusOr<PlannedOperator*> Planner::planMove(const TensorLayout* input, const Placements& to, MoveFor purpose) {
  RedistributeKey key{input, to, purpose};
  if (const auto it = conversions_.find(key); it != conversions_.end()) return it->second.get();
  if (absl::Status reducible = checkReducible(to, input->meta.dtype); !reducible.ok()) return reducible;
  std::unique_ptr<PlannedOperator> plan = start(input->mesh, 1, nameOf(purpose));
  TensorMeta meta = input->meta;
  const bool stays = input->placements == to;
  const bool shares = purpose == MoveFor::kOwnGradient && stays && meta.strides == contiguousStrides(meta.shape);
  if (stays) {
    v1::KernelStep* kernel = plan->wire.add_steps()->mutable_kernel();
    kernel->set_operator_name(shares ? "aten::alias" : "aten::clone");
    kernel->set_outputs(1);
    toWire(Value(TensorArg{0}), kernel->add_arguments());
    if (!shares) toWire(Value(MemoryFormat::kContiguous), kernel->add_arguments());
  } else {
    addConversion(plan.get(), 0, input->meta.shape, input->placements, to);
    plan->redistributions.push_back(Redistribution::of(0, meta, input->mesh->mesh, input->placements, to));
  }
  if (!shares) meta.strides = contiguousStrides(meta.shape);
  addOutput(plan.get(), 1, {std::move(meta), input->mesh, to}, shares ? 0 : -1);
  std::unique_ptr<PlannedOperator>& kept = conversions_[key];
  kept = std::move(plan);
  return kept.get();
}

}  // namespace dtorch
