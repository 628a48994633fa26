#include "worker/kernel_runner.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/placement/convert.h"
#include "comm/store/shared_allocator.h"
#include "dispatch/meta.h"
#include "dispatch/prepared_call.h"
#include "proto/codec.h"
#include "worker/kernel_check.h"

namespace dtorch {
namespace {

FailurePtr firstFailure(const std::vector<std::uint32_t>& slots, const CallState& call) {
  if (call.failures.empty()) return nullptr;
  for (const std::uint32_t slot : slots) {
    if (call.failures[slot] != nullptr) return call.failures[slot];
  }
  return nullptr;
}

bool liesAs(const at::Tensor& tensor, const ExpectedOutput& expected) {
  if (tensor.numel() == 0) return true;
  for (std::size_t d = 0; d < expected.strides.size(); ++d) {
    if (expected.shape[d] != 1 && tensor.stride(static_cast<std::int64_t>(d)) != expected.strides[d]) return false;
  }
  return true;
}

}  // namespace

void KernelRunner::run(Task& task) {
  if (task.plan == nullptr) {
    task.job(*this);
    return;
  }
  const TensorOwnerScope owner(task.session);
  progress_.begin(task.plan, task.number);
  CallState& call = task.call == nullptr ? call_ : *task.call;
  if (task.segment == 0) {
    call.reset(task.plan->slots);
    call.dropped = gate_.begin(stream_, task.session, task.number);
  }
  if (!call.dropped) runSegment(task, call);
  if (task.segment + 1 == task.plan->segments.size()) {
    if (call.dropped) {
      drop(task);
    } else {
      finishCall(task, call);
    }
    call.tensors.clear();
    progress_.end(task.number);
  } else {
    progress_.pause();
  }
}

void KernelRunner::runSegment(const Task& task, CallState& call) {
  const Plan& plan = *task.plan;
  const PlanSegment& segment = plan.segments[task.segment];
  for (const std::uint32_t input : segment.inputs) {
    const Operand& operand = *task.operands[input];
    if (FailurePtr failure = failureOf(operand); failure != nullptr) {
      call.fail(input, failure);
    } else {
      call.tensors[input] = operand.value;
    }
  }
  for (std::uint32_t i = segment.begin; i < segment.end; ++i) {
    std::visit([&](const auto& action) { runAction(action, task, call); }, plan.actions[i]);
  }
}

void KernelRunner::endSession(SessionId session) {
  randomStates_.drop(session);
  host_.drop(session);
}

FailurePtr KernelRunner::failureOf(const Operand& operand) const {
  return operand.failure != nullptr ? operand.failure : lostMemory_.failureOf(operand.value);
}

void KernelRunner::runAction(const KernelAction& action, const Task& task, CallState& call) {
  FailurePtr failure = firstFailure(action.reads, call);
  std::optional<KernelCheck> check;
  if (failure == nullptr) {
    results_.clear();
    if (task.validate) check.emplace(action, call.tensors);
    absl::Status status;
    const auto kernel = [&] { status = action.call.run(call.tensors, &results_); };
    if (action.random) {
      randomStates_.run(task.session, task.plan->mesh.ranks(), kernel);
    } else if (action.own) {
      host_.enter(task.session);
      const OperatorHostScope scope(host_);
      kernel();
    } else {
      kernel();
    }
    if (status.ok() && results_.size() != action.outputs) {
      status =
          absl::InternalError(absl::StrCat("it returned ", results_.size(), " tensors, planned were ", action.outputs));
    }
    if (status.ok() && check) status = check->after(call.tensors, results_);
    if (status.ok()) {
      for (std::uint32_t i = 0; i < action.outputs; ++i) {
        call.tensors[action.firstOutput + i] = std::move(results_[i]);
      }
      return;
    }
    const auto describeSlot = [&](std::string* out, std::uint32_t slot) { out->append(describe(call.tensors[slot])); };
    const std::string arguments = absl::StrJoin(action.reads, ", ", describeSlot);
    failure = originate(absl::StrCat(action.name, "(", arguments, ")"), status, task, call);
  }
  for (std::uint32_t i = 0; i < action.outputs; ++i) call.fail(action.firstOutput + i, failure);
  // What the kernel was to change is not what the program thinks it is, through whatever view it is read.
  std::vector<std::uint32_t> written = action.writes;
  if (check) written.insert(written.end(), check->changed().begin(), check->changed().end());
  for (const std::uint32_t slot : written) {
    lostMemory_.add(call.tensors[slot], failure);
    call.fail(slot, failure);
    if (slot >= task.plan->inputs || task.operands[slot]->failure != nullptr) continue;
    task.operands[slot]->fail(failure);
    call.poisoned.push_back(task.operands[slot]->id);
  }
}

void KernelRunner::runAction(const ConvertAction& action, const Task& task, CallState& call) {
  const Plan& plan = *task.plan;
  const ConvertContext context{plan.mesh,
                               *plan.coordinate,
                               [this](const std::vector<Rank>& ranks) { return groups_.group(ranks); },
                               {task.number, plan.name}};
  FailurePtr failure = call.failureOf(action.input);
  if (failure == nullptr) {
    absl::StatusOr<at::Tensor> result =
        convert(call.tensors[action.input], action.shape, action.from, action.to, context);
    if (result.ok()) {
      call.tensors[action.output] = *std::move(result);
      return;
    }
    failure = Failure::ofPeer(result.status());
    if (failure != nullptr) {
      call.fail(action.output, failure);
      return;
    }
    // Not when a peer died: its groups are gone for good, and the daemon knows it.
    const absl::StatusCode code = result.status().code();
    if (code == absl::StatusCode::kDeadlineExceeded || code == absl::StatusCode::kAborted ||
        code == absl::StatusCode::kFailedPrecondition) {
      call.broken = groups_.broken();
    }
    failure = originate(absl::StrCat("redistribution of ", describe(call.tensors[action.input]), " from ",
                                     toString(action.from), " to ", toString(action.to), " for ", plan.name),
                        result.status(), task, call);
  } else if (!action.local) {
    // The peers get the error too; whatever else goes wrong between us they report themselves.
    failConversion(failure->forPeers(), action.shape, action.from, action.to, context).IgnoreError();
  }
  call.fail(action.output, failure);
}

void KernelRunner::finishCall(const Task& task, CallState& call) {
  const Plan& plan = *task.plan;
  for (std::size_t i = 0; i < plan.outputs.size(); ++i) {
    Operand& operand = *task.operands[plan.inputs + i];
    const std::uint32_t slot = plan.outputs[i];
    FailurePtr failure = call.failureOf(slot);
    if (failure == nullptr) {
      absl::Status planned = fitEmpty(plan, i, call.tensors[slot]);
      if (planned.ok()) planned = checkOutput(plan, i, call.tensors[slot]);
      if (planned.ok() && task.validate) planned = checkPlace(plan, i, call.tensors[slot]);
      if (planned.ok()) planned = settleMemory(plan, i, call);
      if (planned.ok()) {
        operand.set(call.tensors[slot]);
        continue;
      }
      failure = originate(plan.name, planned, task, call);
      call.fail(slot, failure);
    }
    operand.fail(failure);
    call.poisoned.push_back(operand.id);
  }
  if (plan.reportsOutputs && call.firstFailure == nullptr) reportOutputs(task, call);
  if (call.originates || !call.poisoned.empty()) {
    report(call.firstFailure, task.session, task.number, call.poisoned, call.originates, call.broken);
  }
}

void KernelRunner::drop(const Task& task) {
  const Plan& plan = *task.plan;
  auto failure = std::make_shared<Failure>(plan.name, absl::CancelledError("it was cancelled"), rank_);
  failure->operatorName = plan.name;
  failure->root = task.number;
  failure->site = task.site;
  for (std::size_t i = plan.inputs; i < task.operands.size(); ++i) task.operands[i]->fail(failure);
  for (std::uint32_t input = 0; input < plan.inputs; ++input) {
    Operand& operand = *task.operands[input];
    if (!plan.writes(input) || operand.failure != nullptr) continue;
    lostMemory_.add(operand.value, failure);
    operand.fail(failure);
  }
}

void KernelRunner::reportOutputs(const Task& task, const CallState& call) {
  const Plan& plan = *task.plan;
  v1::OperatorOutputs outputs;
  outputs.set_operator_number(task.number);
  outputs.set_first_output(task.operands[plan.inputs]->id);
  for (const std::uint32_t slot : plan.outputs) {
    const at::Tensor& tensor = call.tensors[slot];
    toWire(*tensorMeta(tensor), outputs.add_metas());
    int alias = -1;
    for (std::uint32_t i = 0; alias < 0 && i < plan.inputs; ++i) {
      if (call.tensors[i].defined() && tensor.is_alias_of(call.tensors[i])) alias = static_cast<int>(i);
    }
    outputs.add_aliases(alias);
  }
  *reports_.addAwaited()->mutable_outputs() = std::move(outputs);
}

absl::Status KernelRunner::settleMemory(const Plan& plan, std::size_t index, CallState& call) {
  if (plan.expected.empty()) return absl::OkStatus();
  const int alias = plan.expected[index].alias;
  at::Tensor& tensor = call.tensors[plan.outputs[index]];
  if (alias == ExpectedOutput::kUnknown || tensor.numel() == 0) return absl::OkStatus();
  if (alias >= 0) {
    const at::Tensor& input = call.tensors[static_cast<std::size_t>(alias)];
    if (!input.defined() || tensor.is_alias_of(input)) return absl::OkStatus();
    return absl::UnimplementedError(
        absl::StrCat("the result is a view of input ", alias,
                     ", but of this rank's part it would be a copy: redistribute the input, or copy it first"));
  }
  const ExpectedOutput& expected = plan.expected[index];
  bool settled = expected.isWhole || liesAs(tensor, expected);
  for (std::uint32_t i = 0; settled && i < plan.inputs; ++i) {
    const at::Tensor& input = call.tensors[i];
    settled = !input.defined() || !tensor.is_alias_of(input);
  }
  if (settled) return absl::OkStatus();
  try {
    tensor = expected.isWhole || expected.strides.empty()
                 ? tensor.clone()
                 : at::empty_strided(expected.shape, expected.strides, tensor.options()).copy_(tensor);
  } catch (const std::exception& error) {
    return fromException(error);
  }
  return absl::OkStatus();
}

absl::Status KernelRunner::fitEmpty(const Plan& plan, std::size_t index, at::Tensor& tensor) {
  if (plan.expected.empty() || !tensor.defined() || tensor.numel() > 0) return absl::OkStatus();
  const ExpectedOutput& expected = plan.expected[index];
  const bool planned = tensor.sizes() == c10::IntArrayRef(expected.shape) && tensor.scalar_type() == expected.dtype;
  if (planned || c10::multiply_integers(expected.shape) > 0) return absl::OkStatus();
  try {
    if (expected.alias < 0 || !plan.writes(static_cast<std::uint32_t>(expected.alias))) {
      tensor = at::empty(expected.shape, tensor.options().dtype(expected.dtype));
    } else if (tensor.scalar_type() == expected.dtype) {
      tensor.resize_(expected.shape);
    }
  } catch (const std::exception& error) {
    return fromException(error);
  }
  return absl::OkStatus();
}

absl::Status KernelRunner::checkOutput(const Plan& plan, std::size_t index, const at::Tensor& tensor) {
  // What nobody knows before must at least be what can be described.
  if (plan.expected.empty()) return tensorMeta(tensor).status();
  const ExpectedOutput& expected = plan.expected[index];
  if (tensor.defined() && tensor.scalar_type() == expected.dtype &&
      tensor.sizes() == c10::IntArrayRef(expected.shape)) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("output ", index, " is ", describe(tensor), " where ",
                                          describe(expected.dtype, expected.shape),
                                          " was planned; the operator's shape or placement rule is wrong"));
}

absl::Status KernelRunner::checkPlace(const Plan& plan, std::size_t index, const at::Tensor& tensor) {
  if (plan.expected.empty()) return absl::OkStatus();
  const ExpectedOutput& expected = plan.expected[index];
  const bool planned = tensor.device() == plan.device && (!expected.isWhole || liesAs(tensor, expected));
  if (planned) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("validation: output ", index, ", ", describe(tensor), ", has strides [",
                                          absl::StrJoin(tensor.strides(), ", "), "] on ", tensor.device().str(),
                                          " where [", absl::StrJoin(expected.strides, ", "), "] on ", plan.device.str(),
                                          " was planned"));
}

FailurePtr KernelRunner::originate(const std::string& what, const absl::Status& status, const Task& task,
                                   CallState& call) const {
  auto failure = std::make_shared<Failure>(what, status, rank_);
  failure->operatorName = task.plan->name;
  failure->root = task.number;
  failure->site = task.site;
  call.originates = true;
  if (call.firstFailure == nullptr) call.firstFailure = failure;
  return failure;
}

void KernelRunner::fail(absl::Span<const OperandRef> operands, const FailurePtr& failure, SessionId session,
                        OperatorNumber number) {
  std::vector<OperandId> ids;
  for (const OperandRef& operand : operands) {
    operand->fail(failure);
    ids.push_back(operand->id);
  }
  report(failure, session, number, ids, true, {});
  if (number > 0) progress_.end(number);
}

void KernelRunner::report(const FailurePtr& failure, SessionId session, OperatorNumber number,
                          const std::vector<OperandId>& operands, bool originates,
                          const std::vector<BrokenGroup>& broken) {
  if (failure->root == number && failure->status.message().size() > kMaxStatusText) {
    log_->warn("operator {} failed: {}", number, printable(std::string(failure->status.message()), kMaxLoggedText));
  }
  v1::ReportItem* item = originates ? reports_.addAwaited() : reports_.add();
  v1::OperatorFailed* failed = item->mutable_failed();
  failed->set_session(session);
  failed->set_operator_number(number);
  failed->set_root(failure->root);
  failed->set_site(failure->site);
  for (const BrokenGroup& group : broken) {
    v1::BrokenGroup* out = failed->add_broken();
    out->mutable_ranks()->Add(group.ranks.begin(), group.ranks.end());
    out->set_epoch(group.epoch);
  }
  failure->toWire(failed->mutable_error());
  failed->mutable_operands()->Add(operands.begin(), operands.end());
}

}  // namespace dtorch
