#include "daemon/session/client_session.h"

#include <google/protobuf/util/json_util.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/random/random.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/placement/rule.h"
#include "daemon/session/common_mesh.h"
#include "proto/codec.h"
#include "proto/version.h"

namespace dtorch {
namespace {

// A client that leaves so much unread is not read from either, until it has drained.
constexpr std::size_t kHeldBackBytes = 32u << 20;
// Values that a session has asked for and not been sent; it waits with more.
constexpr std::uint64_t kMaxOpenValueBytes = 256u << 20;
// How long one request may hold up other sessions, and status().
constexpr std::chrono::milliseconds kTurn(20);
constexpr int kCommandsBetweenClocks = 32;
constexpr std::size_t kMaxRuleBytes = 4096;

/// Tells a client that the memory of its put is its own again.
class PutLease {
 public:
  PutLease(std::shared_ptr<SessionChannel> channel, TensorId tensor) : channel_(std::move(channel)), tensor_(tensor) {}
  PutLease(const PutLease&) = delete;
  PutLease& operator=(const PutLease&) = delete;
  ~PutLease() {
    auto message = std::make_shared<v1::DaemonMessage>();
    message->mutable_put_taken()->set_tensor(tensor_);
    channel_->send(std::move(message));
  }

 private:
  const std::shared_ptr<SessionChannel> channel_;
  const TensorId tensor_;
};

void sendResult(SessionChannel* channel, FutureId future, const TensorMeta* meta) {
  auto message = std::make_shared<v1::DaemonMessage>();
  message->mutable_result()->set_future(future);
  if (meta != nullptr) toWire(*meta, message->mutable_result()->mutable_meta());
  message->mutable_result()->set_done(true);
  channel->send(std::move(message));
}

}  // namespace

ClientSession::ClientSession(SessionId id, std::shared_ptr<SessionChannel> channel, SessionServices* services)
    : id_(id),
      channel_(std::move(channel)),
      services_(services),
      opened_(std::chrono::steady_clock::now()),
      cancelToken_(absl::Uniform<std::uint64_t>(services->random)),
      cancelled_(
          std::make_shared<OperandFailure>(OperandFailure{absl::CancelledError("it was cancelled"), "", -1, "", true})),
      definitions_(services),
      rules_(&services->libraryRules),
      tensors_(services->limits, &services->totals),
      failures_(&services->failed),
      nextOperand_((id << kSessionShift) + 1),
      nextFence_((id << kSessionShift) + 1) {}

void ClientSession::accept(std::unique_ptr<ClientRequest> request) {
  request_ = std::move(request);
  arrived_ = std::chrono::steady_clock::now();
  cursor_ = 0;
}

ClientSession::Progress ClientSession::work() {
  const v1::ClientMessage& message = std::as_const(*request_).message();
  switch (message.kind_case()) {
    case v1::ClientMessage::kHello:
      hello(message.hello());
      break;
    case v1::ClientMessage::kBatch:
      if (!greeted_) {
        protocolError(absl::FailedPreconditionError("the first message of a stream must be a hello"));
        break;
      }
      if (const Progress progress = workOn(message.batch()); progress != Progress::kDone) return progress;
      break;
    case v1::ClientMessage::KIND_NOT_SET:
      protocolError(absl::InvalidArgumentError("a message is neither hello nor batch, or one of a newer protocol"));
      break;
  }
  request_.reset();
  readOn();
  return Progress::kDone;
}

ClientSession::Progress ClientSession::workOn(const v1::CommandBatch& batch) {
  const auto over = std::chrono::steady_clock::now() + kTurn;
  const int begun = cursor_;
  Progress progress = Progress::kDone;
  for (int untilClock = kCommandsBetweenClocks; !closed_ && cursor_ < batch.commands_size(); ++cursor_) {
    if (--untilClock == 0) {
      untilClock = kCommandsBetweenClocks;
      if (std::chrono::steady_clock::now() > over) progress = Progress::kTurnOver;
    }
    if (progress == Progress::kDone && channel_->queuedBytes() > kHeldBackBytes) {
      held_ = true;
      progress = Progress::kHeld;
    }
    const std::size_t planned = services_->planner->size();
    try {
      if (progress == Progress::kDone && !run(batch.commands(cursor_))) {
        progress = cursor_ == begun ? Progress::kStuck : Progress::kWaiting;
      }
    } catch (const std::exception& error) {  // nothing should throw; but no session may end the daemon
      protocolError(absl::InternalError(absl::StrCat("command ", cursor_, " of a batch: ", error.what())));
    }
    if (progress != Progress::kDone) break;
    // What was not a call of something known may have taken its time.
    if (batch.commands(cursor_).template_id() == 0 || services_->planner->size() != planned) untilClock = 1;
  }
  services_->executor->flush();
  return progress;
}

void ClientSession::readOn() {
  if (closed_ || request_ != nullptr) return;
  held_ = channel_->queuedBytes() > kHeldBackBytes;
  if (!held_) channel_->readNext();
}

bool ClientSession::drained() {
  if (!std::exchange(held_, false)) return false;
  if (request_ != nullptr) return true;
  readOn();
  return false;
}

void ClientSession::protocolError(const absl::Status& status) {
  if (status.ok()) return;
  closed_ = true;
  channel_->close(status);
}

void ClientSession::hello(const v1::ClientHello& hello) {
  if (greeted_) return protocolError(absl::InvalidArgumentError("a second hello on one stream"));
  if (hello.protocol() != kProtocolVersion) {
    return protocolError(absl::FailedPreconditionError(absl::StrCat("the client speaks protocol ", hello.protocol(),
                                                                    ", dtorchd ", kDtorchVersion, " speaks ",
                                                                    kProtocolVersion, ": install matching versions")));
  }
  greeted_ = true;
  sync_ = hello.sync();
  validate_ = hello.validate() || services_->validate;
  client_ = printable(hello.client(), 256);
  const PeerCredentials peer = channel_->peer();
  opensSegments_ = peer.uid == static_cast<std::int64_t>(::geteuid()) && peer.pid > 0 && peer.pid == hello.pid();
  auto message = std::make_shared<v1::DaemonMessage>();
  v1::Welcome* welcome = message->mutable_welcome();
  welcome->set_protocol(kProtocolVersion);
  welcome->set_session(id_);
  welcome->set_version(kDtorchVersion);
  welcome->set_world_size(services_->worldSize);
  welcome->set_device_type(v1::DEVICE_TYPE_CPU);
  welcome->set_daemon_pid(getpid());
  welcome->set_opens_segments(opensSegments_);
  welcome->set_cancel_token(cancelToken_);
  channel_->send(std::move(message));
}

bool ClientSession::run(const v1::Command& command) {
  if (awaited_) return false;
  if (command.template_id() != 0) return runCall(command);
  switch (command.other_case()) {
    case v1::Command::kDefineTemplate:
      protocolError(definitions_.define(command.define_template()));
      return true;
    case v1::Command::kDefineSite:
      protocolError(definitions_.define(command.define_site()));
      return true;
    case v1::Command::kDefineMesh:
      protocolError(definitions_.define(command.define_mesh()));
      return true;
    case v1::Command::kPut:
      return put(command);
    case v1::Command::kPutChunk:
      return putChunk(command.put_chunk());
    case v1::Command::kRedistribute:
      return redistribute(command);
    case v1::Command::kGet:
      return get(command);
    case v1::Command::kRelease:
      release(command.release().tensors());
      return true;
    case v1::Command::kDescribe:
      describe(command.describe());
      return true;
    case v1::Command::kExplain:
      return explain(command);
    case v1::Command::kListRules:
      listRules(command.list_rules().future());
      return true;
    case v1::Command::kDeclareRule:
      declareRule(command.declare_rule(), command.site());
      return true;
    case v1::Command::kListRedistributions:
      sendJson(command.list_redistributions().future(), redistributions_.list());
      if (command.list_redistributions().forget()) redistributions_.forget();
      return true;
    case v1::Command::kSynchronize:
      return synchronize(command.synchronize());
    case v1::Command::kCancelCalls:
      reachCancel(command.cancel_calls().serial());
      return true;
    case v1::Command::kAwaitWorkers:
      awaitWorkers(command.await_workers().future());
      return true;
    case v1::Command::kCancelGet:
      cancelGet(command.cancel_get().future());
      return true;
    case v1::Command::kStreamValue:
      services_->futures->stream(id_, command.stream_value().future());
      return true;
    case v1::Command::OTHER_NOT_SET:
      break;
  }
  protocolError(absl::InvalidArgumentError("a command is empty, or one of a newer protocol"));
  return true;
}

// --- failures ---

OperandFailurePtr ClientSession::fail(absl::Status status, std::string operatorName, std::uint32_t site) {
  return failures_.refused(std::move(status), std::move(operatorName), definitions_.site(site));
}

OperandFailurePtr ClientSession::unknownTensor(TensorId tensor, const std::string& operatorName, std::uint32_t site) {
  return fail(absl::NotFoundError(absl::StrCat(
                  "tensor ", tensor, " is not one of this session: it was never made, or it has been released")),
              operatorName, site);
}

bool ClientSession::checkNew(TensorId first, std::uint32_t count) {
  const absl::Status status = tensors_.checkNew(first, count);
  protocolError(status);
  return status.ok();
}

bool ClientSession::checkNumbers(std::size_t count) {
  if (sessionOf(std::max(nextOperand_, nextFence_) + count) == id_) return true;
  protocolError(absl::ResourceExhaustedError("the session has made as many tensors as it can number: open a new one"));
  return false;
}

void ClientSession::outputsKnown(const v1::OperatorOutputs& reported) {
  if (!awaited_ || awaited_->number != reported.operator_number()) return;
  const AwaitedCall call = *std::move(awaited_);
  awaited_.reset();
  const PlacedMesh* mesh = call.inputs.empty() ? call.op->mesh : call.inputs[0]->mesh;
  std::vector<OutputMeta> metas;
  std::vector<const TensorLayout*> outputs;
  std::vector<int> aliases;
  absl::Status status;
  for (int o = 0; status.ok() && o < reported.metas_size(); ++o) {
    absl::StatusOr<TensorMeta> meta = fromWire(reported.metas(o));
    status = meta.status();
    if (!meta.ok()) break;
    outputs.push_back(services_->layouts->intern({*meta, mesh, allReplicate(mesh->mesh.dims())}));
    aliases.push_back(o < reported.aliases_size() ? reported.aliases(o) : -1);
    metas.push_back({*std::move(meta), aliases.back()});
  }
  if (status.ok() && outputs.size() != call.op->outputs) status = absl::InternalError("outputs are missing");
  if (status.ok()) status = tensors_.checkQuota(outputs, aliases);
  if (!status.ok()) {
    awaited_ = call;
    return failAwaited(fail(std::move(status), call.op->name, call.site));
  }
  for (std::size_t o = 0; o < outputs.size(); ++o) {
    const int alias = metas[o].alias;
    const bool shares = alias >= 0 && static_cast<std::size_t>(alias) < call.inputTensors.size();
    tensors_.add(call.tensor + o,
                 {call.operand + o, outputs[o], nullptr,
                  shares ? tensors_.memoryOf(call.inputTensors[static_cast<std::size_t>(alias)]) : nullptr});
  }
  services_->planner->learn(*call.op, call.inputs, rules_, call.implicit, std::move(metas));
}

void ClientSession::failAwaited(const OperandFailurePtr& failure) {
  const AwaitedCall call = *std::move(awaited_);
  awaited_.reset();
  tensors_.addFailed(call.tensor, call.op->outputs, failure);
  std::vector<OperandId> operands;
  for (std::uint32_t o = 0; o < call.op->outputs; ++o) operands.push_back(call.operand + o);
  services_->executor->discard(call.group, operands);
}

void ClientSession::operatorFailed(Rank rank, const v1::OperatorFailed& failed) {
  // Failures of uploads come without an operator: they are told apart by the operand.
  const OperatorNumber root = failed.root() != 0              ? failed.root()
                              : failed.operator_number() != 0 ? failed.operator_number()
                              : failed.operands_size() > 0    ? failed.operands(0)
                                                              : 0;
  const Rank where = failed.error().rank() > 0 ? failed.error().rank() - 1 : rank;
  const OperandFailurePtr failure = failures_.reported(root, where, definitions_.site(failed.site()), failed.error());
  failures_.setFailed(failed.operands(), failed.operator_number(), failure, tensors_);
  tensors_.writerFailed(failed.operator_number(), failure);
  if (awaited_ && awaited_->number == failed.operator_number()) failAwaited(failure);
}

OperandFailurePtr ClientSession::failureOf(const FutureTable::Fetched& fetched, Rank rank,
                                           const v1::FetchedValue& value) {
  if (OperandFailurePtr known = failures_.failureOf(fetched.operand, fetched.behind); known != nullptr) return known;
  if (!value.has_error() || value.root() == 0) return nullptr;
  const Rank where = value.error().rank() > 0 ? value.error().rank() - 1 : rank;
  return failures_.reported(value.root(), where, definitions_.site(value.site()), value.error());
}

void ClientSession::addUsed(absl::flat_hash_set<const TensorLayout*>& layouts,
                            absl::flat_hash_set<const PlacedMesh*>& meshes) const {
  tensors_.addUsed(layouts);
  if (awaited_) layouts.insert(awaited_->inputs.begin(), awaited_->inputs.end());
  definitions_.addUsed(meshes);
}

// --- operators ---

bool ClientSession::canAppend(GroupId group) const {
  return services_->executor->usable(group) || !services_->executor->error(group).ok();
}

OperandId ClientSession::publish(PlannedOperator* plan, absl::Span<const OperandId> inputs, std::uint32_t site,
                                 OperatorNumber* number, absl::Span<const std::uint32_t> written) {
  Executor* executor = services_->executor;
  const GroupId group = plan->mesh->group;
  groups_.insert(group);
  if (!plan->published) {
    *executor->appendCommand(group, plan->wire.ByteSizeLong())->mutable_define_plan() = plan->wire;
    plan->published = true;
  }
  v1::WorkerCommand* run = executor->appendOperator(group, plan->id, number);
  run->mutable_inputs()->Add(inputs.begin(), inputs.end());
  const OperandId first = nextOperand_;
  nextOperand_ += static_cast<OperandId>(plan->wire.outputs_size());
  run->set_first_output(first);
  run->set_site(site);
  if (validate_) run->set_validate(true);
  ++operators_;
  redistributions_.add(*plan, site, definitions_);
  absl::InlinedVector<OperandId, 1> writtenOperands;
  for (const std::uint32_t input : written) writtenOperands.push_back(inputs[input]);
  addToGraph({*number,
              id_,
              group,
              {},
              site,
              std::chrono::steady_clock::now(),
              {inputs.begin(), inputs.end()},
              std::move(writtenOperands),
              first,
              static_cast<std::uint32_t>(plan->wire.outputs_size())},
             plan->wire.name());
  return first;
}

void ClientSession::addToGraph(GraphOperator op, absl::string_view name) {
  services_->graph.retire(op.group, services_->executor->oldestInFlight(op.group));
  services_->graph.add(std::move(op), name);
}

void ClientSession::refuse(const v1::Command& command, const OperatorTemplate& op, const OperandFailurePtr& failure,
                           absl::Span<const int> views) {
  // Who writes to a view that was refused writes to what it would have been a view of.
  for (std::uint32_t o = 0; o < op.outputs; ++o) {
    const int viewed = o < views.size() ? views[o] : op.viewed ? static_cast<int>(*op.viewed) : -1;
    const bool isThere =
        viewed >= 0 && viewed < command.inputs_size() && tensors_.find(command.inputs(viewed)) != nullptr;
    tensors_.addFailed(command.first_output() + o, 1, failure,
                       isThere ? tensors_.memoryOf(command.inputs(viewed)) : nullptr);
  }
  for (const std::uint32_t input : op.written) {
    if (!sync_ && static_cast<int>(input) < command.inputs_size()) {
      tensors_.failMemory(command.inputs(static_cast<int>(input)), failure);
    }
  }
}

absl::Status ClientSession::checkWritten(const OperatorTemplate& op, const v1::Command& command,
                                         absl::Span<const TensorLayout* const> layouts) const {
  for (const std::uint32_t written : op.written) {
    const OperandMemory* memory = tensors_.find(command.inputs(static_cast<int>(written)))->memory.get();
    if (memory == nullptr || memory->viewed == nullptr) continue;
    return absl::UnimplementedError(
        "it writes to a view of a tensor that lies where it cannot be viewed so, and was copied for it: write to the "
        "tensor itself, or redistribute it before the view is made");
  }
  if (op.written.empty() || std::all_of(layouts.begin(), layouts.end(), [](const TensorLayout* layout) {
        return isAllReplicate(layout->placements);
      })) {
    return absl::OkStatus();
  }
  for (const std::uint32_t written : op.written) {
    const TensorId tensor = command.inputs(static_cast<int>(written));
    const OperandMemory* memory = tensors_.find(tensor)->memory.get();
    for (const TensorId other : command.inputs()) {
      if (memory == nullptr || other == tensor || tensors_.find(other)->memory.get() != memory) continue;
      return absl::UnimplementedError(
          "it writes to memory that another argument shares: whether they overlap may differ between the parts of a "
          "sharded tensor; copy that argument first (aten::clone)");
    }
  }
  return absl::OkStatus();
}

bool ClientSession::runCall(const v1::Command& command) {
  const TemplateEntry* entry = definitions_.callTemplate(command.template_id());
  if (entry == nullptr) {
    protocolError(absl::InvalidArgumentError(absl::StrCat("template ", command.template_id(), " is not defined")));
    return true;
  }
  if (!checkNew(command.first_output(), entry->outputs) || !checkNumbers(entry->outputs)) return true;
  if (!entry->error.ok()) {
    const OperandFailurePtr failure = fail(entry->error, entry->name, command.site());
    tensors_.addFailed(command.first_output(), entry->outputs, failure);
    // Which tensor it was to write to is not known.
    for (const TensorId tensor : command.inputs()) {
      if (entry->inPlace && !sync_) tensors_.failMemory(tensor, failure);
    }
    return true;
  }
  const OperatorTemplate& op = *entry->op;
  const auto refuseFor = [&](absl::Status why) {
    refuse(command, op, fail(std::move(why), op.name, command.site()));
    return true;
  };
  if (isCancelling()) {
    refuse(command, op, cancelled_);
    return true;
  }
  const TimeLimit limit = timeLimit(command);
  if (absl::Status late = checkTime(limit); !late.ok()) return refuseFor(std::move(late));
  if (!op.refusal.ok()) return refuseFor(op.refusal);
  if (static_cast<std::uint32_t>(command.inputs_size()) != op.inputs) {
    return refuseFor(absl::InvalidArgumentError(
        absl::StrCat("its arguments hold ", op.inputs, " tensors, the call gives ", command.inputs_size())));
  }
  absl::InlinedVector<const TensorLayout*, 6> layouts;
  absl::InlinedVector<OperandId, 6> operands;
  for (const TensorId tensor : command.inputs()) {
    const SessionTensor* operand = tensors_.find(tensor);
    OperandFailurePtr failure =
        operand == nullptr ? unknownTensor(tensor, op.name, command.site()) : operand->failure();
    if (failure != nullptr) {
      refuse(command, op, failure);
      return true;
    }
    layouts.push_back(operand->layout);
    operands.push_back(operand->id);
  }
  if (absl::Status apart = checkWritten(op, command, layouts); !apart.ok()) return refuseFor(std::move(apart));
  if (command.implicit()) toCommonMesh(absl::MakeSpan(layouts), op.written, services_->layouts);
  absl::StatusOr<PlannedOperator*> plan = services_->planner->plan(op, layouts, rules_, command.implicit());
  const auto refusePlanned = [&](absl::Status why) {
    refuse(command, op, fail(std::move(why), op.name, command.site()),
           services_->planner->viewsOf(op, layouts, rules_, command.implicit()));
    return true;
  };
  if (!plan.ok()) return refusePlanned(plan.status());
  if (*plan == nullptr) return waitWithin(limit);
  const GroupId group = (*plan)->mesh->group;
  if (!canAppend(group)) return waitWithin(limit);
  if (const absl::Status& error = services_->executor->error(group); !error.ok()) return refusePlanned(error);
  const auto& aliases = (*plan)->wire.output_aliases();
  if (absl::Status quota = tensors_.checkQuota((*plan)->outputs, aliases); !quota.ok())
    return refusePlanned(std::move(quota));
  OperatorNumber number = 0;
  const OperandId first = publish(*plan, operands, command.site(), &number, op.written);
  limitTime(limit, number, command.site());
  for (const std::uint32_t input : op.written) {
    const std::shared_ptr<OperandMemory> memory = tensors_.memoryOf(command.inputs(static_cast<int>(input)));
    if (TensorTable::hasCopiedViews(*memory)) {
      // Nobody need be told of a view that is not read any more.
      TensorTable::loseCopiedViews(
          *memory,
          std::make_shared<OperandFailure>(OperandFailure{
              absl::FailedPreconditionError(
                  "it writes to a tensor of which this was a view, and had to be a copy, as the tensor lies where "
                  "it cannot be viewed so: redistribute it before the view is made"),
              op.name, -1, definitions_.site(command.site()), true}));
    }
    tensors_.addWriter(number, group, memory, *services_->executor);
  }
  if ((*plan)->unknownOutputs) {
    awaited_ = {number,
                group,
                command.first_output(),
                first,
                entry->op,
                {layouts.begin(), layouts.end()},
                {command.inputs().begin(), command.inputs().end()},
                command.site(),
                command.implicit()};
    return true;
  }
  for (std::size_t o = 0; o < (*plan)->outputs.size(); ++o) {
    const int alias = (*plan)->wire.output_aliases(static_cast<int>(o));
    tensors_.add(command.first_output() + o, {first + o, (*plan)->outputs[o], nullptr,
                                              alias < 0 ? nullptr : tensors_.memoryOf(command.inputs(alias))});
  }
  for (const CopiedView& view : (*plan)->copiedViews) {
    tensors_.setMemory(command.first_output() + view.output,
                       tensors_.copyViewOf(command.inputs(static_cast<int>(view.input))));
  }
  return true;
}

bool ClientSession::redistribute(const v1::Command& command) {
  const v1::Redistribute& wanted = command.redistribute();
  if (!checkNew(wanted.output(), 1) || !checkNumbers(1)) return true;
  const SessionTensor* operand = tensors_.find(wanted.tensor());
  const auto refuseFor = [&](const OperandFailurePtr& failure) {
    tensors_.addFailed(wanted.output(), 1, failure);
    return true;
  };
  if (isCancelling()) return refuseFor(cancelled_);
  if (operand == nullptr) return refuseFor(unknownTensor(wanted.tensor(), "redistribute", command.site()));
  if (operand->failure() != nullptr) return refuseFor(operand->failure());
  const TimeLimit limit = timeLimit(command);
  if (absl::Status late = checkTime(limit); !late.ok()) {
    return refuseFor(fail(std::move(late), "redistribute", command.site()));
  }
  const TensorLayout* layout = operand->layout;
  const GroupId group = layout->mesh->group;
  absl::StatusOr<Placements> to = fromWire(wanted.placements());
  if (wanted.gradient_of() != 0) {
    const SessionTensor* of = tensors_.find(wanted.gradient_of());
    if (of != nullptr && of->failure() != nullptr) return refuseFor(of->failure());
    to = placementsOfGradient(*layout, wanted.gradient_of());
  }
  if (to.ok()) to = normalize(*std::move(to), layout->mesh->mesh.dims(), static_cast<int>(layout->meta.shape.size()));
  if (!to.ok()) return refuseFor(fail(to.status(), "redistribute", command.site()));
  absl::StatusOr<PlannedOperator*> plan =
      services_->planner->planMove(layout, *to,
                                   wanted.gradient_of() == 0 ? MoveFor::kRedistribute
                                   : wanted.share()          ? MoveFor::kOwnGradient
                                                             : MoveFor::kGradient);
  if (!canAppend(group)) return waitWithin(limit);
  absl::Status status = plan.status();
  if (status.ok()) status = services_->executor->error(group);
  if (status.ok()) status = tensors_.checkQuota((*plan)->outputs, (*plan)->wire.output_aliases());
  if (!status.ok()) return refuseFor(fail(std::move(status), "redistribute", command.site()));
  OperatorNumber number = 0;
  const OperandId output = publish(*plan, {&operand->id, 1}, command.site(), &number);
  limitTime(limit, number, command.site());
  const bool shares = (*plan)->wire.output_aliases(0) >= 0;
  tensors_.add(wanted.output(),
               {output, (*plan)->outputs[0], nullptr, shares ? tensors_.memoryOf(wanted.tensor()) : nullptr});
  return true;
}

absl::StatusOr<Placements> ClientSession::placementsOfGradient(const TensorLayout& gradient, TensorId of) const {
  const SessionTensor* tensor = tensors_.find(of);
  if (tensor == nullptr || tensor->layout == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", of, ", whose gradient it is, is not there"));
  }
  if (tensor->layout->mesh != gradient.mesh) {
    const Placements whole(static_cast<std::size_t>(gradient.mesh->mesh.dims()), Placement::replicate());
    if (haveSameRanks(*tensor->layout->mesh, *gradient.mesh)) return whole;
    return absl::InvalidArgumentError(absl::StrCat("a gradient on ", gradient.mesh->mesh.toString(), " of a tensor on ",
                                                   tensor->layout->mesh->mesh.toString()));
  }
  Placements placements = tensor->layout->placements;
  std::replace_if(
      placements.begin(), placements.end(), [](const Placement& each) { return each.isPartial(); },
      Placement::replicate());
  return placements;
}

// --- values in ---

bool ClientSession::put(const v1::Command& command) {
  const v1::Put& put = command.put();
  if (incoming_ == nullptr) {
    incoming_ =
        std::make_unique<IncomingPut>(put, command.site(), timeLimit(command),
                                      put.has_segment() ? std::make_shared<PutLease>(channel_, put.tensor()) : nullptr);
    absl::StatusOr<TensorLayout> layout = checkPut(put, definitions_);
    absl::Status status = layout.status();
    // Only its own: what it names is opened with this user's rights.
    if (status.ok() && put.has_segment() && (!opensSegments_ || put.segment().pid() != channel_->peer().pid)) {
      status = absl::InvalidArgumentError("a put names a segment that is not the client's, or cannot be opened here");
    }
    if (status.ok()) {
      const TensorLayout* interned = services_->layouts->intern(*std::move(layout));
      tensors_.setIncoming(interned);
      status = tensors_.checkQuota({}, {});
      if (status.ok()) status = incoming_->open(put, interned);
    }
    if (!status.ok()) incoming_->failure = fail(std::move(status), "put", command.site());
    receive(put.inline_bytes());
  } else if (!incoming_->waiting) {
    protocolError(absl::InvalidArgumentError(absl::StrCat(
        "a put of tensor ", put.tensor(), " before the one of tensor ", incoming_->tensor(), " is complete")));
    return true;
  }
  return finishPut();
}

void ClientSession::receive(const std::string& data) {
  if (absl::Status status = incoming_->receive(data); !status.ok()) {
    incoming_->failure = fail(std::move(status), "put", incoming_->site());
  }
}

bool ClientSession::putChunk(const v1::PutChunk& chunk) {
  if (incoming_ == nullptr || incoming_->tensor() != chunk.tensor()) {
    protocolError(absl::InvalidArgumentError(
        absl::StrCat("bytes of tensor ", chunk.tensor(), " without a put that waits for them")));
    return true;
  }
  // Back after waiting for the group: these bytes are in already.
  if (!incoming_->waiting) {
    if (const absl::Status status = incoming_->checkNext(chunk); !status.ok()) {
      protocolError(status);
      return true;
    }
    receive(chunk.data());
  }
  return finishPut();
}

bool ClientSession::finishPut() {
  IncomingPut& incoming = *incoming_;
  if (!incoming.complete() || !checkNew(incoming.tensor(), 1) || !checkNumbers(1)) return true;
  if (isCancelling()) incoming.failure = cancelled_;
  if (absl::Status late = checkTime(incoming.timeLimit()); incoming.failure == nullptr && !late.ok()) {
    incoming.failure = fail(std::move(late), "put", incoming.site());
  }
  if (incoming.failure == nullptr) {
    const GroupId group = incoming.layout()->mesh->group;
    if (!canAppend(group)) {
      incoming.waiting = true;
      return waitWithin(incoming.timeLimit());
    }
    if (const absl::Status& error = services_->executor->error(group); !error.ok()) {
      incoming.failure = fail(error, "put", incoming.site());
    } else {
      groups_.insert(group);
      const OperandId operand = nextOperand_++;
      v1::Upload upload = incoming.takeUpload(operand);
      OperatorNumber number = 0;
      *services_->executor->appendUpload(group, incoming.totalBytes(), incoming.takeMemory(), &number) =
          std::move(upload);
      addToGraph({number, id_, group, {}, incoming.site(), std::chrono::steady_clock::now(), {}, {}, operand, 1},
                 "put");
      limitTime(incoming.timeLimit(), number, incoming.site());
      tensors_.add(incoming.tensor(), {operand, incoming.layout(), nullptr, nullptr});
    }
  }
  if (incoming.failure != nullptr) tensors_.addFailed(incoming.tensor(), 1, incoming.failure);
  tensors_.setIncoming(nullptr);
  incoming_.reset();
  return true;
}

// --- values out ---

bool ClientSession::get(const v1::Command& command) {
  if (!checkNumbers(1)) return true;
  const v1::Get& wanted = command.get();
  if (services_->futures->awaits(id_, wanted.future())) {
    protocolError(absl::InvalidArgumentError(absl::StrCat("future id ", wanted.future(), " is in use already")));
    return true;
  }
  const SessionTensor* source = tensors_.find(wanted.tensor());
  if (OperandFailurePtr failure = isCancelling()      ? cancelled_
                                  : source == nullptr ? unknownTensor(wanted.tensor(), "get", command.site())
                                                      : source->failure();
      failure != nullptr) {
    FutureTable::sendError(channel_.get(), wanted.future(), failure.get());
    return true;
  }
  const TensorLayout* layout = source->layout;
  const DeviceMesh& deviceMesh = layout->mesh->mesh;
  const GroupId group = layout->mesh->group;
  if (!canAppend(group) || services_->futures->openBytes(id_) > kMaxOpenValueBytes) return false;
  absl::Status status = services_->executor->error(group);
  if (status.ok()) status = tensors_.checkValue(layout);
  if (status.ok() && wanted.local()) status = deviceMesh.coordinate(wanted.rank()).status();
  OperandId operand = source->id;
  const bool gather = !wanted.local() && !isAllReplicate(layout->placements);
  PlannedOperator* plan = nullptr;
  if (status.ok() && gather) {
    absl::StatusOr<PlannedOperator*> planned =
        services_->planner->planMove(layout, allReplicate(deviceMesh.dims()), MoveFor::kGet);
    status = planned.status();
    if (status.ok()) plan = *planned;
  }
  if (!status.ok()) {
    FutureTable::sendError(channel_.get(), wanted.future(), fail(status, "get", command.site()).get());
    return true;
  }
  OperatorNumber number = 0;
  if (plan != nullptr) operand = publish(plan, {&operand, 1}, command.site(), &number);
  groups_.insert(group);
  v1::Fetch* fetch = services_->executor->appendCommand(group)->mutable_fetch();
  fetch->set_operand(operand);
  fetch->set_rank(wanted.local() ? wanted.rank() : deviceMesh.ranks()[0]);
  fetch->set_future(services_->futures->await(id_, channel_, wanted.future(), group, operand,
                                              static_cast<std::uint64_t>(layout->meta.bytes()), wanted.by_ticket()));
  if (plan != nullptr) services_->executor->appendCommand(group)->mutable_discard()->add_operands(operand);
  return true;
}

void ClientSession::describe(const v1::Describe& describe) {
  const SessionTensor* operand = tensors_.find(describe.tensor());
  if (OperandFailurePtr failure =
          operand == nullptr ? unknownTensor(describe.tensor(), "describe", 0) : operand->failure();
      failure != nullptr) {
    return FutureTable::sendError(channel_.get(), describe.future(), failure.get());
  }
  const TensorLayout* layout = operand->layout;
  auto message = std::make_shared<v1::DaemonMessage>();
  v1::FutureResult* result = message->mutable_result();
  result->set_future(describe.future());
  toWire(layout->meta, result->mutable_meta());
  toWire(layout->placements, result->mutable_placements());
  result->set_mesh(definitions_.idOf(layout->mesh));
  result->set_done(true);
  channel_->send(std::move(message));
}

bool ClientSession::explain(const v1::Command& command) {
  const v1::Explain& asked = command.explain();
  const TemplateEntry* entry = definitions_.callTemplate(asked.template_id());
  if (entry == nullptr) {
    protocolError(absl::InvalidArgumentError(absl::StrCat("template ", asked.template_id(), " is not defined")));
    return true;
  }
  const auto answerWith = [&](const OperandFailurePtr& failure) {
    FutureTable::sendError(channel_.get(), asked.future(), failure.get());
    return true;
  };
  for (const absl::Status& error : {entry->error, entry->op == nullptr ? absl::OkStatus() : entry->op->refusal}) {
    if (!error.ok()) return answerWith(fail(error, entry->name, command.site()));
  }
  if (static_cast<std::uint32_t>(asked.inputs_size()) != entry->op->inputs) {
    return answerWith(fail(absl::InvalidArgumentError(absl::StrCat("its arguments hold ", entry->op->inputs,
                                                                   " tensors, the call gives ", asked.inputs_size())),
                           entry->name, command.site()));
  }
  std::vector<const TensorLayout*> layouts;
  for (const TensorId tensor : asked.inputs()) {
    const SessionTensor* operand = tensors_.find(tensor);
    if (operand == nullptr) return answerWith(unknownTensor(tensor, entry->name, command.site()));
    if (operand->failure() != nullptr) return answerWith(operand->failure());
    layouts.push_back(operand->layout);
  }
  toCommonMesh(absl::MakeSpan(layouts), entry->op->written, services_->layouts);
  absl::StatusOr<std::optional<v1::Explanation>> explanation = services_->planner->explain(*entry->op, layouts, rules_);
  if (!explanation.ok()) return answerWith(fail(explanation.status(), entry->name, command.site()));
  if (!*explanation) return false;
  sendJson(asked.future(), **explanation);
  return true;
}

void ClientSession::declareRule(const v1::DeclareRule& declared, std::uint32_t site) {
  const std::string name = printable(declared.operator_name(), 256);
  absl::Status status = services_->policy.check(name);
  if (status.ok() && !services_->policy.isOfLibrary(name)) {
    status = absl::PermissionDeniedError("rules are declared for operators of operator libraries only");
  }
  if (status.ok()) status = findOperator(name).status();
  if (status.ok() && absl::StrContains(declared.rule(), "\n")) {
    status = absl::InvalidArgumentError("a rule is one line");
  }
  if (status.ok() && !rules_.has(name) && rules_.size() >= services_->maxRules) {
    status = absl::ResourceExhaustedError(
        absl::StrCat("the session has declared ", rules_.size(), " rules, as many as session.max_rules allows"));
  }
  if (status.ok()) status = rules_.add(name, printable(declared.rule(), kMaxRuleBytes));
  if (!status.ok()) {
    return FutureTable::sendError(channel_.get(), declared.future(), fail(std::move(status), name, site).get());
  }
  services_->planner->rulesChanged(rules_);
  sendResult(channel_.get(), declared.future(), nullptr);
}

void ClientSession::listRules(FutureId future) {
  // Some thousands of operators are asked for their rules: once.
  if (services_->ruledOperators.operators().empty()) {
    for (const auto& [name, pointwise] : ruledOperators(services_->libraryRules)) {
      if (!services_->policy.check(name).ok()) continue;
      v1::RuledOperator* added = services_->ruledOperators.add_operators();
      added->set_name(name);
      added->set_pointwise(pointwise);
    }
  }
  v1::RuleList list = services_->ruledOperators;
  for (const std::string& name : rules_.added()) list.add_operators()->set_name(name);
  sendJson(future, list);
}

void ClientSession::sendJson(FutureId future, const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  auto answer = std::make_shared<v1::DaemonMessage>();
  v1::FutureResult* result = answer->mutable_result();
  result->set_future(future);
  const auto written = google::protobuf::util::MessageToJsonString(message, result->mutable_json(), options);
  if (!written.ok()) {
    const OperandFailurePtr failure = fail(
        absl::InternalError(absl::StrCat(message.GetTypeName(), " as JSON: ", std::string(written.message()))), "", 0);
    return FutureTable::sendError(channel_.get(), future, failure.get());
  }
  result->set_done(true);
  channel_->send(std::move(answer));
}

bool ClientSession::synchronize(const v1::Synchronize& synchronize) {
  if (!checkNumbers(groups_.size())) return true;
  if (isCancelling()) {
    FutureTable::sendError(channel_.get(), synchronize.future(), cancelled_.get());
    return true;
  }
  for (const GroupId group : groups_) {
    if (!canAppend(group)) return false;
  }
  auto pending = std::make_shared<PendingFence>();
  pending->future = synchronize.future();
  for (const GroupId group : groups_) {
    if (!services_->executor->error(group).ok()) continue;
    const std::uint64_t fence = nextFence_++;
    services_->executor->appendFence(group, fence);
    fences_[fence] = {group, pending};
    ++pending->missing;
  }
  if (pending->missing == 0) finishSynchronize(pending->future);
  return true;
}

void ClientSession::awaitWorkers(FutureId future) {
  services_->health.await({id_, future, [channel = channel_, future](const absl::Status& health) {
                             if (health.ok()) return sendResult(channel.get(), future, nullptr);
                             OperandFailure failure{health, "", -1, ""};
                             FutureTable::sendError(channel.get(), future, &failure);
                           }});
}

void ClientSession::cancelGet(FutureId future) {
  services_->futures->cancel(id_, future);
  services_->health.cancel(id_, future);
  // Nobody hears the error that a synchronize would tell: the next one does.
  absl::erase_if(fences_, [&](const auto& entry) { return entry.second.pending->future == future; });
}

void ClientSession::finishSynchronize(FutureId future) {
  if (const OperandFailurePtr failure = failures_.takeUnobserved(); failure != nullptr) {
    return FutureTable::sendError(channel_.get(), future, failure.get());
  }
  sendResult(channel_.get(), future, nullptr);
}

void ClientSession::fenceReached(std::uint64_t fence) {
  const auto it = fences_.find(fence);
  if (it == fences_.end()) return;
  std::shared_ptr<PendingFence> pending = it->second.pending;
  fences_.erase(it);
  if (--pending->missing == 0) finishSynchronize(pending->future);
}

void ClientSession::failBrokenGroups(Rank rank, const absl::Status& why, bool told) {
  // What was in flight is lost: if no future has said so, the next synchronize does.
  const std::size_t broken =
      absl::erase_if(groups_, [this](GroupId group) { return !services_->executor->error(group).ok(); });
  if (broken > 0 && !told) failures_.remember(std::make_shared<OperandFailure>(OperandFailure{why, "", rank, ""}));
  if (awaited_ && !services_->executor->error(awaited_->group).ok()) {
    failAwaited(fail(services_->executor->error(awaited_->group), awaited_->op->name, awaited_->site));
  }
  std::vector<std::uint64_t> ended;
  for (const auto& [fence, waiting] : fences_) {
    if (!services_->executor->error(waiting.group).ok()) ended.push_back(fence);
  }
  for (const std::uint64_t fence : ended) fenceReached(fence);
  // Each tensor says so when it is used: nothing more to remember.
  const absl::Status lost(kTensorLost, absl::StrCat("the tensor is lost: ", why.message()));
  tensors_.failBroken(std::make_shared<OperandFailure>(OperandFailure{lost, "", rank, ""}), *services_->executor);
}

void ClientSession::release(absl::Span<const TensorId> tensors) {
  absl::flat_hash_map<GroupId, std::vector<OperandId>> released;
  for (const TensorId tensor : tensors) {
    const SessionTensor operand = tensors_.remove(tensor);
    if (operand.id == 0) continue;
    failures_.forget(operand.id);
    released[operand.layout->mesh->group].push_back(operand.id);
  }
  for (const auto& [group, operands] : released) services_->executor->discard(group, operands);
}

void ClientSession::close() {
  closed_ = true;
  request_.reset();
  services_->planner->rulesChanged(rules_);
  services_->futures->dropSession(id_);
  services_->health.dropSession(id_);
  if (awaited_) failAwaited(fail(absl::CancelledError("the session has ended"), awaited_->op->name, awaited_->site));
  release(tensors_.ids());
  forgetTimeLimits();
  services_->executor->endSession(id_);
}

v1::SessionStatus ClientSession::status() const {
  v1::SessionStatus status;
  const PeerCredentials peer = channel_->peer();
  status.set_id(id_);
  status.set_client(client_);
  status.set_uid(peer.uid);
  status.set_pid(peer.pid);
  status.set_age_ms(
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - opened_).count());
  status.set_tensors(tensors_.size());
  status.set_tensor_bytes(static_cast<std::int64_t>(tensors_.bytes()));
  status.set_operators(operators_);
  status.set_failed(failures_.count());
  status.set_futures(services_->futures->pendingOf(id_) + fences_.size());
  status.set_redistributions(redistributions_.implicit());
  return status;
}

}  // namespace dtorch
