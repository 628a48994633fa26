#include "worker/plan.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/conversion.h"
#include "core/shard.h"
#include "dispatch/dtype.h"
#include "dispatch/written_arguments.h"
#include "proto/codec.h"

namespace dtorch {
namespace {

constexpr std::uint32_t kMaxSlots = 1 << 16;

absl::Status checkSlot(std::uint32_t slot, std::uint32_t slots) {
  if (slot < slots) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("slot ", slot, " is used before it exists; there are ", slots));
}

absl::Status checkShape(const std::vector<std::int64_t>& shape) {
  const bool negative = std::any_of(shape.begin(), shape.end(), [](std::int64_t extent) { return extent < 0; });
  return negative ? absl::InvalidArgumentError("a shape has a negative extent") : absl::OkStatus();
}

// Puts this rank's sizes in place of LocalSizes and collects the tensors that `value` refers to.
class ArgumentResolver {
 public:
  ArgumentResolver(const DeviceMesh& mesh, const std::vector<std::int64_t>& coordinate, std::uint32_t slots)
      : mesh_(mesh), coordinate_(coordinate), slots_(slots) {}

  absl::StatusOr<Value> resolve(Value value) {
    if (const auto* tensor = value.as<TensorArg>()) return useSlot(tensor->index, value);
    if (const auto* list = value.as<TensorListArg>()) {
      for (const auto& index : list->indices) {
        if (!index) continue;
        if (absl::StatusOr<Value> used = useSlot(*index, value); !used.ok()) return used;
      }
      return value;
    }
    if (const auto* sizes = value.as<LocalSizes>()) {
      if (absl::Status shape = checkShape(sizes->shape); !shape.ok()) return shape;
      absl::StatusOr<Placements> placements =
          normalize(sizes->placements, mesh_.dims(), static_cast<int>(sizes->shape.size()));
      if (!placements.ok()) return placements.status();
      return Value(localShape(sizes->shape, mesh_, *placements, coordinate_));
    }
    if (const auto* range = value.as<LocalRange>()) return resolveRange(*range);
    if (const auto* values = value.as<std::vector<Value>>()) {
      std::vector<Value> resolved;
      for (const Value& element : *values) {
        absl::StatusOr<Value> result = resolve(element);
        if (!result.ok()) return result;
        resolved.push_back(*std::move(result));
      }
      return Value(std::move(resolved));
    }
    return value;
  }

  std::vector<std::uint32_t> takeSlots() { return std::exchange(used_, {}); }

 private:
  absl::StatusOr<Value> resolveRange(const LocalRange& range) const {
    if (absl::Status shape = checkShape(range.shape); !shape.ok()) return shape;
    const int dims = static_cast<int>(range.shape.size());
    absl::StatusOr<Placements> placements = normalize(range.placements, mesh_.dims(), dims);
    if (!placements.ok()) return placements.status();
    if (range.dim < 0 || range.dim >= dims) return absl::InvalidArgumentError("a local range has no such dimension");
    const ShardRange local =
        localRange(range.shape[static_cast<std::size_t>(range.dim)], range.dim, mesh_, *placements, coordinate_);
    return Value(range.part == LocalRange::Part::kOffset ? local.offset : local.length);
  }

  absl::StatusOr<Value> useSlot(std::uint32_t slot, const Value& value) {
    if (absl::Status status = checkSlot(slot, slots_); !status.ok()) return status;
    used_.push_back(slot);
    return value;
  }

  const DeviceMesh& mesh_;
  const std::vector<std::int64_t>& coordinate_;
  const std::uint32_t slots_;
  std::vector<std::uint32_t> used_;
};

void include(const std::vector<std::uint32_t>& more, std::vector<std::uint32_t>* slots) {
  for (const std::uint32_t slot : more) {
    if (std::find(slots->begin(), slots->end(), slot) == slots->end()) slots->push_back(slot);
  }
}

// Whether the conversion needs no other rank. One that is not defined needs none either, and says so when it runs.
bool isLocal(const ConvertAction& action, const DeviceMesh& mesh) {
  const absl::StatusOr<std::vector<ConversionStep>> steps = planConversion(action.shape, mesh, action.from, action.to);
  return !steps.ok() || std::none_of(steps->begin(), steps->end(), [&](const ConversionStep& step) {
    return step.communicates() && mesh.shape()[static_cast<std::size_t>(step.meshDim)] > 1;
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Plan>> Plan::create(const v1::Plan& wire, Rank rank, at::Device device) {
  absl::StatusOr<DeviceMesh> mesh = fromWire(wire.mesh());
  if (!mesh.ok()) return mesh.status();
  std::unique_ptr<Plan> plan(new Plan(*std::move(mesh), device));
  plan->id = wire.id();
  plan->name = wire.name();
  plan->inputs = wire.inputs();
  plan->outputs.assign(wire.outputs().begin(), wire.outputs().end());
  if (absl::StatusOr<std::vector<std::int64_t>> coordinate = plan->mesh.coordinate(rank); coordinate.ok()) {
    plan->coordinate = *std::move(coordinate);
    plan->reportsOutputs = wire.report_outputs() && plan->mesh.ranks()[0] == rank;
    plan->error = plan->decode(wire);
    if (!plan->error.ok()) plan->segments.clear();
    plan->brief = plan->takesNoTime();
  }
  return plan;
}

absl::Status Plan::decode(const v1::Plan& wire) {
  if (absl::Status status = addSlots(wire.inputs()); !status.ok()) return status;
  for (const v1::PlanStep& step : wire.steps()) {
    absl::Status status = absl::InvalidArgumentError("a step of the plan is of an unknown kind");
    if (step.has_kernel()) status = decodeKernel(step.kernel());
    if (step.has_convert()) status = decodeConvert(step.convert());
    if (!status.ok()) return status;
  }
  if (absl::Status status = decodeOutputs(wire); !status.ok()) return status;
  divideIntoSegments();
  return absl::OkStatus();
}

absl::Status Plan::addSlots(std::uint32_t count) {
  if (count > kMaxSlots - slots) {
    return absl::InvalidArgumentError(absl::StrCat("a plan has more than ", kMaxSlots, " tensors"));
  }
  slots += count;
  return absl::OkStatus();
}

absl::Status Plan::decodeKernel(const v1::KernelStep& wire) {
  absl::StatusOr<c10::OperatorHandle> op = findOperator(wire.operator_name());
  if (!op.ok()) return op.status();
  ArgumentResolver resolver(mesh, *coordinate, slots);
  std::vector<Value> arguments;
  std::vector<std::uint32_t> reads;
  std::vector<std::uint32_t> writes;
  for (int i = 0; i < wire.arguments_size(); ++i) {
    absl::StatusOr<Value> value = fromWire(wire.arguments(i));
    if (value.ok()) value = resolver.resolve(*std::move(value));
    if (!value.ok()) return value.status();
    arguments.push_back(*std::move(value));
    const std::vector<std::uint32_t> used = resolver.takeSlots();
    include(used, &reads);
    const auto argument = static_cast<std::size_t>(i);
    if (argument < op->schema().arguments().size() && isWritten(op->schema(), argument)) include(used, &writes);
  }
  absl::StatusOr<PreparedCall> call = PreparedCall::create(*op, arguments, device);
  if (!call.ok()) {
    return absl::Status(call.status().code(), absl::StrCat(wire.operator_name(), ": ", call.status().message()));
  }
  const bool mutates = wire.mutates() || !writes.empty();
  actions.emplace_back(KernelAction{wire.operator_name(), *std::move(call), std::move(reads), std::move(writes), slots,
                                    wire.outputs(), mutates, wire.random(),
                                    absl::StartsWith(wire.operator_name(), "dtorch::")});
  return addSlots(wire.outputs());
}

absl::Status Plan::decodeConvert(const v1::ConvertStep& wire) {
  if (absl::Status status = checkSlot(wire.input(), slots); !status.ok()) return status;
  ConvertAction action{wire.input(), slots, {wire.shape().begin(), wire.shape().end()}, {}, {}, false};
  if (absl::Status status = checkShape(action.shape); !status.ok()) return status;
  const auto read = [&](const auto& placements, Placements* out) -> absl::Status {
    absl::StatusOr<Placements> decoded = fromWire(placements);
    if (decoded.ok()) decoded = normalize(*std::move(decoded), mesh.dims(), static_cast<int>(action.shape.size()));
    if (!decoded.ok()) return decoded.status();
    *out = *std::move(decoded);
    return absl::OkStatus();
  };
  if (absl::Status status = read(wire.from(), &action.from); !status.ok()) return status;
  if (absl::Status status = read(wire.to(), &action.to); !status.ok()) return status;
  action.local = isLocal(action, mesh);
  actions.emplace_back(std::move(action));
  return addSlots(1);
}

bool Plan::writes(std::uint32_t input) const {
  return std::any_of(actions.begin(), actions.end(), [input](const PlanAction& action) {
    const auto* kernel = std::get_if<KernelAction>(&action);
    return kernel != nullptr && std::count(kernel->writes.begin(), kernel->writes.end(), input) > 0;
  });
}

absl::Status Plan::decodeOutputs(const v1::Plan& wire) {
  for (const std::uint32_t slot : outputs) {
    if (absl::Status status = checkSlot(slot, slots); !status.ok()) return status;
  }
  if (wire.output_metas().empty()) return absl::OkStatus();
  if (wire.output_metas_size() != wire.outputs_size() || wire.output_placements_size() != wire.outputs_size()) {
    return absl::InvalidArgumentError("a plan needs metadata and placements for each of its outputs");
  }
  for (int i = 0; i < wire.outputs_size(); ++i) {
    absl::StatusOr<TensorMeta> meta = fromWire(wire.output_metas(i));
    if (!meta.ok()) return meta.status();
    absl::StatusOr<Placements> placements = fromWire(wire.output_placements(i).placements());
    if (placements.ok()) placements = normalize(*placements, mesh.dims(), static_cast<int>(meta->shape.size()));
    if (!placements.ok()) return placements.status();
    const int alias = static_cast<int>(expected.size()) < wire.output_aliases_size()
                          ? wire.output_aliases(static_cast<int>(expected.size()))
                          : ExpectedOutput::kUnknown;
    if (alias >= static_cast<int>(inputs)) return absl::InvalidArgumentError("an output shares an input that is none");
    expected.push_back({toTorch(meta->dtype),
                        localShape(meta->shape, mesh, *placements, *coordinate),
                        {},
                        isAllReplicate(*placements),
                        alias});
    ExpectedOutput& output = expected.back();
    output.strides = output.isWhole ? meta->strides : stridesInOrderOf(*meta, output.shape);
  }
  return absl::OkStatus();
}

bool Plan::takesNoTime() const {
  if (segments.size() != 1 || segments[0].stream != StreamKind::kCompute || expected.size() != outputs.size()) {
    return false;
  }
  std::size_t kernels = 0;
  const auto isShort = [&](const PlanAction& action) {
    const auto* kernel = std::get_if<KernelAction>(&action);
    if (kernel == nullptr) return true;
    return ++kernels == 1 && kernel->call.op().hasTag(at::Tag::core) && !kernel->random &&
           !absl::StrContains(kernel->name, "convolution");
  };
  const auto isSmall = [](const ExpectedOutput& output) {
    auto bytes = static_cast<std::int64_t>(c10::elementSize(output.dtype));
    for (const std::int64_t extent : output.shape) {
      if (extent > kBriefBytes) return false;
      bytes *= extent;
      if (bytes > kBriefBytes) return false;
    }
    return true;
  };
  return std::all_of(actions.begin(), actions.end(), isShort) && std::all_of(expected.begin(), expected.end(), isSmall);
}

void Plan::divideIntoSegments() {
  for (std::uint32_t i = 0; i < actions.size(); ++i) {
    const auto* kernel = std::get_if<KernelAction>(&actions[i]);
    const auto* conversion = std::get_if<ConvertAction>(&actions[i]);
    const bool communicates = conversion != nullptr && !conversion->local;
    const StreamKind stream = communicates ? StreamKind::kCommunication : StreamKind::kCompute;
    if (segments.empty() || segments.back().stream != stream) segments.push_back({stream, i, i, {}, false});
    PlanSegment& segment = segments.back();
    segment.end = i + 1;
    if (kernel != nullptr) {
      segment.mutates = segment.mutates || kernel->mutates;
      include(kernel->reads, &segment.inputs);
    } else {
      include({conversion->input}, &segment.inputs);
    }
  }
  // Even a plan without actions hands its inputs on, as outputs: the last segment reads those.
  if (segments.empty()) segments.emplace_back();
  include(outputs, &segments.back().inputs);
  for (PlanSegment& segment : segments) {
    std::erase_if(segment.inputs, [this](std::uint32_t slot) { return slot >= inputs; });
  }
}

}  // namespace dtorch
