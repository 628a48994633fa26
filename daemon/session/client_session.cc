#include "daemon/session/client_session.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/shard.h"
#include "proto/codec.h"
#include "proto/limits.h"
#include "proto/segment_codec.h"
#include "proto/version.h"

namespace dtorch {
namespace {

// Failures nobody asked about: so many are remembered, the rest only counted.
constexpr std::size_t kRememberedFailures = 1024;
// A client that leaves so much unread is not read from either, until it has drained.
constexpr std::size_t kHeldBackBytes = 32u << 20;
// What a session may define: programs have some hundreds of each.
constexpr std::uint32_t kMaxTemplates = 1u << 20;
constexpr std::size_t kMaxTemplateBytes = 256u << 20;
constexpr std::uint32_t kMaxSites = 1u << 20;
constexpr std::uint32_t kMaxMeshes = 4096;
constexpr std::size_t kMaxKnownMeshes = 1u << 16;
constexpr std::uint32_t kMaxOutputs = 1u << 16;
// How long one request may hold up other sessions, and status().
constexpr std::chrono::milliseconds kTurn(20);
constexpr int kCommandsBetweenClocks = 32;
// Failures of operands that a session may have released by then.
constexpr std::size_t kUnownedFailures = 4096;

std::string localShapeText(const std::vector<std::int64_t>& shape) {
  return TensorMeta{DType::kUnspecified, shape, {}}.toString().substr(name(DType::kUnspecified).size());
}

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
      nextOperand_((id << kSessionShift) + 1),
      nextFence_((id << kSessionShift) + 1) {}

void ClientSession::accept(std::unique_ptr<ClientRequest> request) {
  request_ = std::move(request);
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
  Progress progress = Progress::kDone;
  for (int untilClock = kCommandsBetweenClocks; !closed_ && cursor_ < batch.commands_size(); ++cursor_) {
    if (--untilClock == 0) {
      untilClock = kCommandsBetweenClocks;
      if (std::chrono::steady_clock::now() > over) progress = Progress::kTurnOver;
    }
    if (progress == Progress::kDone && !run(batch.commands(cursor_))) progress = Progress::kWaiting;
    if (progress != Progress::kDone) break;
  }
  services_->executor->flush();
  return progress;
}

void ClientSession::readOn() {
  if (closed_ || request_ != nullptr) return;
  held_ = channel_->queuedBytes() > kHeldBackBytes;
  if (!held_) channel_->readNext();
}

void ClientSession::drained() {
  if (held_) readOn();
}

void ClientSession::protocolError(const absl::Status& status) {
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
  client_ = printable(hello.client(), 256);
  auto message = std::make_shared<v1::DaemonMessage>();
  v1::Welcome* welcome = message->mutable_welcome();
  welcome->set_protocol(kProtocolVersion);
  welcome->set_session(id_);
  welcome->set_version(kDtorchVersion);
  welcome->set_world_size(services_->worldSize);
  welcome->set_device_type(v1::DEVICE_TYPE_CPU);
  welcome->set_daemon_pid(getpid());
  channel_->send(std::move(message));
}

bool ClientSession::run(const v1::Command& command) {
  if (command.template_id() != 0) return runCall(command);
  switch (command.other_case()) {
    case v1::Command::kDefineTemplate:
      defineTemplate(command.define_template());
      return true;
    case v1::Command::kDefineSite:
      defineSite(command.define_site());
      return true;
    case v1::Command::kDefineMesh:
      defineMesh(command.define_mesh());
      return true;
    case v1::Command::kPut:
      return put(command.put(), command.site());
    case v1::Command::kPutChunk:
      return putChunk(command.put_chunk());
    case v1::Command::kRedistribute:
      return redistribute(command);
    case v1::Command::kGet:
      return get(command);
    case v1::Command::kRelease:
      release(command.release());
      return true;
    case v1::Command::kDescribe:
      describe(command.describe());
      return true;
    case v1::Command::kSynchronize:
      return synchronize(command.synchronize());
    case v1::Command::kCancelGet:
      services_->futures->cancel(id_, command.cancel_get().future());
      return true;
    case v1::Command::OTHER_NOT_SET:
      break;
  }
  protocolError(absl::InvalidArgumentError("a command is empty, or one of a newer protocol"));
  return true;
}

// --- failures ---

std::string ClientSession::site(std::uint32_t id) const {
  const auto it = sites_.find(id);
  return it == sites_.end() ? std::string() : it->second.toString();
}

OperandFailurePtr ClientSession::fail(absl::Status status, std::string operatorName, std::uint32_t siteId) {
  auto failure =
      std::make_shared<OperandFailure>(OperandFailure{std::move(status), std::move(operatorName), -1, site(siteId)});
  ++failed_;
  ++services_->failed;
  remember(failure);
  return failure;
}

void ClientSession::remember(const OperandFailurePtr& failure) {
  if (unobserved_.size() >= kRememberedFailures) {
    std::erase_if(unobserved_, [](const OperandFailurePtr& f) { return f->observed; });
  }
  if (unobserved_.size() < kRememberedFailures) unobserved_.push_back(failure);
}

OperandFailurePtr ClientSession::unknownTensor(TensorId tensor, const std::string& operatorName, std::uint32_t siteId) {
  return fail(absl::NotFoundError(absl::StrCat(
                  "tensor ", tensor, " is not one of this session: it was never made, or it has been released")),
              operatorName, siteId);
}

void ClientSession::poison(TensorId first, std::uint32_t count, const OperandFailurePtr& failure) {
  for (std::uint32_t i = 0; i < count; ++i) {
    if (!addTensor(first + i, {0, nullptr, failure})) return;
  }
}

bool ClientSession::addTensor(TensorId tensor, Operand operand) {
  if (tensor == 0) {
    protocolError(absl::InvalidArgumentError("tensor id 0 is not allowed"));
    return false;
  }
  // Failed tensors are under no quota of their own, but not without end.
  if (tensors_.size() > services_->limits.maxTensors + kMaxOutputs) {
    protocolError(
        absl::ResourceExhaustedError("the session holds more failed tensors than session.max_tensors: release some"));
    return false;
  }
  const std::uint64_t bytes = operand.layout == nullptr ? 0 : static_cast<std::uint64_t>(operand.layout->meta.bytes());
  if (!tensors_.emplace(tensor, std::move(operand)).second) {
    protocolError(absl::InvalidArgumentError(absl::StrCat("tensor id ", tensor, " is already in use")));
    return false;
  }
  tensorBytes_ += bytes;
  return true;
}

OperandFailurePtr ClientSession::reportedFailure(OperatorNumber root, Rank rank, std::uint32_t siteId,
                                                 const v1::Status& error) {
  OperandFailurePtr& failure = reported_[root];
  if (failure == nullptr) {
    failure =
        std::make_shared<OperandFailure>(OperandFailure{fromWire(error), error.operator_name(), rank, site(siteId)});
    ++failed_;
    ++services_->failed;
    remember(failure);
    if (reported_.size() > kRememberedFailures) {
      OperandFailurePtr kept = failure;
      reported_.clear();
      reported_[root] = kept;
      return kept;
    }
  }
  return failure;
}

void ClientSession::operatorFailed(Rank rank, const v1::OperatorFailed& failed) {
  // An upload is no operator: its failures are told apart by the operand.
  const OperatorNumber root = failed.root() != 0              ? failed.root()
                              : failed.operator_number() != 0 ? failed.operator_number()
                                                              : failed.operands(0);
  const Rank where = failed.error().rank() > 0 ? failed.error().rank() - 1 : rank;
  OperandFailurePtr failure = reportedFailure(root, where, failed.site(), failed.error());
  for (const OperandId operand : failed.operands()) failedOperands_.emplace(operand, failure);
  if (failedOperands_.size() > 2 * tensors_.size() + kUnownedFailures) forgetFailuresOfReleased();
}

// A worker's report may come after the release of the operand, or be of one that no tensor stands for (a gathered
// value).
void ClientSession::forgetFailuresOfReleased() {
  absl::flat_hash_set<OperandId> held;
  for (const auto& [tensor, operand] : tensors_) held.insert(operand.id);
  absl::erase_if(failedOperands_, [&](const auto& entry) { return !held.contains(entry.first); });
}

void ClientSession::addLayouts(absl::flat_hash_set<const TensorLayout*>& used) const {
  for (const auto& [tensor, operand] : tensors_) {
    if (operand.layout != nullptr) used.insert(operand.layout);
  }
  if (incoming_ != nullptr && incoming_->layout != nullptr) used.insert(incoming_->layout);
}

OperandFailurePtr ClientSession::failureOf(OperandId operand, Rank rank, const v1::FetchedValue& value) {
  if (const auto it = failedOperands_.find(operand); it != failedOperands_.end()) return it->second;
  if (!value.has_error() || value.root() == 0) return nullptr;
  const Rank where = value.error().rank() > 0 ? value.error().rank() - 1 : rank;
  return reportedFailure(value.root(), where, value.site(), value.error());
}

std::uint64_t ClientSession::unobservedFailures() const {
  return static_cast<std::uint64_t>(
      std::count_if(unobserved_.begin(), unobserved_.end(), [](const OperandFailurePtr& f) { return !f->observed; }));
}

// --- definitions ---

void ClientSession::defineSite(const v1::SiteDefinition& definition) {
  if (definition.id() == 0 || definition.id() > kMaxSites) {
    return protocolError(
        absl::InvalidArgumentError(absl::StrCat("site id ", definition.id(), " is none of 1 to ", kMaxSites)));
  }
  sites_[definition.id()] = {printable(definition.file(), 512), definition.line()};
}

void ClientSession::defineTemplate(const v1::TemplateDefinition& definition) {
  if (definition.id() == 0 || definition.id() > kMaxTemplates) {
    return protocolError(
        absl::InvalidArgumentError(absl::StrCat("template id ", definition.id(), " is none of 1 to ", kMaxTemplates)));
  }
  TemplateEntry& entry = templates_[definition.id()];
  templateBytes_ -= entry.bytes;
  entry = {nullptr, printable(definition.name(), 256), absl::OkStatus(), std::min(definition.outputs(), kMaxOutputs),
           definition.ByteSizeLong()};
  templateBytes_ += entry.bytes;
  if (templateBytes_ > kMaxTemplateBytes) {
    return protocolError(absl::ResourceExhaustedError(
        absl::StrCat("the session's templates take more than ", kMaxTemplateBytes, " bytes")));
  }
  const PlacedMesh* placedOn = nullptr;
  if (definition.mesh() != 0) {
    absl::StatusOr<const PlacedMesh*> found = mesh(definition.mesh());
    if (!found.ok()) {
      entry.error = found.status();
      return;
    }
    placedOn = *found;
  }
  v1::TemplateDefinition keyed = definition;
  keyed.clear_id();
  keyed.clear_mesh();
  const std::string key = absl::StrCat(keyed.SerializeAsString(), "@", reinterpret_cast<std::uintptr_t>(placedOn));
  const auto it = services_->templates.find(key);
  if (it != services_->templates.end()) {
    entry.op = it->second;
    return;
  }
  absl::StatusOr<Arguments> arguments = fromWire(definition.arguments());
  if (!arguments.ok()) {
    entry.error = arguments.status();
    return;
  }
  absl::StatusOr<Placements> placements = fromWire(definition.placements());
  if (!placements.ok()) {
    entry.error = placements.status();
    return;
  }
  absl::StatusOr<OperatorTemplate> made =
      OperatorTemplate::create(entry.name, *arguments, entry.outputs, placedOn, *std::move(placements));
  if (!made.ok()) {
    entry.error = made.status();
    return;
  }
  entry.op = std::make_shared<const OperatorTemplate>(*std::move(made));
  services_->templates.emplace(key, entry.op);
}

void ClientSession::defineMesh(const v1::MeshDefinition& definition) {
  absl::StatusOr<DeviceMesh> wanted = fromWire(definition.mesh());
  if (!wanted.ok()) return protocolError(wanted.status());
  for (const Rank rank : wanted->ranks()) {
    if (rank >= services_->worldSize) {
      return protocolError(absl::InvalidArgumentError(absl::StrCat(
          "mesh ", wanted->toString(), " names rank ", rank, "; this daemon has ", services_->worldSize, " workers")));
    }
  }
  if (wanted->deviceType() != DeviceType::kCpu) {
    return protocolError(
        absl::InvalidArgumentError(absl::StrCat("mesh ", wanted->toString(), ": the workers' devices are cpu")));
  }
  if (definition.id() == 0 || definition.id() > kMaxMeshes || services_->meshes.size() > kMaxKnownMeshes) {
    return protocolError(
        absl::ResourceExhaustedError(absl::StrCat("mesh id ", definition.id(), ": a session may define ", kMaxMeshes,
                                                  ", a daemon know ", kMaxKnownMeshes, " different ones")));
  }
  const absl::StatusOr<GroupId> group = services_->executor->groupOf(wanted->ranks());
  if (!group.ok()) return protocolError(group.status());
  meshes_[definition.id()] = &services_->meshes.try_emplace(*wanted, PlacedMesh{*wanted, *group}).first->second;
}

absl::StatusOr<const PlacedMesh*> ClientSession::mesh(std::uint32_t id) const {
  const auto it = meshes_.find(id);
  if (it == meshes_.end()) return absl::NotFoundError(absl::StrCat("mesh ", id, " is not defined in this session"));
  return it->second;
}

bool ClientSession::canAppend(GroupId group) const {
  return services_->executor->usable(group) || !services_->executor->error(group).ok();
}

// --- operators ---

OperandId ClientSession::publish(PlannedOperator* plan, absl::Span<const OperandId> inputs, std::uint32_t siteId) {
  Executor* executor = services_->executor;
  const GroupId group = plan->mesh->group;
  groups_.insert(group);
  if (!plan->published) {
    *executor->appendCommand(group)->mutable_define_plan() = plan->wire;
    plan->published = true;
  }
  OperatorNumber number = 0;
  v1::WorkerCommand* run = executor->appendOperator(group, &number);
  run->set_plan(plan->id);
  run->mutable_inputs()->Add(inputs.begin(), inputs.end());
  const OperandId first = nextOperand_;
  nextOperand_ += plan->outputs.size();
  run->set_first_output(first);
  run->set_site(siteId);
  return first;
}

void ClientSession::refuse(const v1::Command& command, const OperatorTemplate& op, const OperandFailurePtr& failure) {
  poison(command.first_output(), op.outputs, failure);
  // Whoever reads what was not written must hear of it.
  for (const auto& [output, input] : op.mutated) {
    if (static_cast<int>(input) >= command.inputs_size()) continue;
    const auto it = tensors_.find(command.inputs(static_cast<int>(input)));
    if (it != tensors_.end() && it->second.failure == nullptr) it->second.failure = failure;
  }
}

bool ClientSession::runCall(const v1::Command& command) {
  const auto found = templates_.find(command.template_id());
  if (found == templates_.end()) {
    protocolError(absl::InvalidArgumentError(absl::StrCat("template ", command.template_id(), " is not defined")));
    return true;
  }
  const TemplateEntry& entry = found->second;
  if (!entry.error.ok()) {
    poison(command.first_output(), entry.outputs, fail(entry.error, entry.name, command.site()));
    return true;
  }
  const OperatorTemplate& op = *entry.op;
  if (static_cast<std::uint32_t>(command.inputs_size()) != op.inputs) {
    refuse(command, op,
           fail(absl::InvalidArgumentError(
                    absl::StrCat("its arguments hold ", op.inputs, " tensors, the call gives ", command.inputs_size())),
                op.name, command.site()));
    return true;
  }
  absl::InlinedVector<const TensorLayout*, 6> layouts;
  absl::InlinedVector<OperandId, 6> operands;
  for (const TensorId tensor : command.inputs()) {
    const auto it = tensors_.find(tensor);
    if (it == tensors_.end()) {
      refuse(command, op, unknownTensor(tensor, op.name, command.site()));
      return true;
    }
    if (it->second.failure != nullptr) {
      refuse(command, op, it->second.failure);
      return true;
    }
    layouts.push_back(it->second.layout);
    operands.push_back(it->second.id);
  }
  absl::StatusOr<PlannedOperator*> plan = services_->planner->plan(op, layouts);
  if (!plan.ok()) {
    refuse(command, op, fail(plan.status(), op.name, command.site()));
    return true;
  }
  const GroupId group = (*plan)->mesh->group;
  if (!canAppend(group)) return false;
  if (const absl::Status& error = services_->executor->error(group); !error.ok()) {
    refuse(command, op, fail(error, op.name, command.site()));
    return true;
  }
  if (absl::Status quota = checkQuota((*plan)->outputs); !quota.ok()) {
    refuse(command, op, fail(std::move(quota), op.name, command.site()));
    return true;
  }
  const OperandId first = publish(*plan, operands, command.site());
  ++operators_;
  for (std::size_t o = 0; o < (*plan)->outputs.size(); ++o) {
    if (!addTensor(command.first_output() + o, {first + o, (*plan)->outputs[o], nullptr})) break;
  }
  return true;
}

absl::Status ClientSession::checkQuota(absl::Span<const TensorLayout* const> added) const {
  const SessionLimits& limits = services_->limits;
  std::uint64_t bytes = tensorBytes_;
  std::size_t tensors = tensors_.size() + added.size();
  for (const TensorLayout* layout : added) bytes += static_cast<std::uint64_t>(layout->meta.bytes());
  if (incoming_ != nullptr && incoming_->layout != nullptr) {
    bytes += static_cast<std::uint64_t>(incoming_->layout->meta.bytes());
    ++tensors;
  }
  if (tensors > limits.maxTensors) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the session would hold more than session.max_tensors = ", limits.maxTensors, " tensors; release some"));
  }
  if (bytes > limits.maxBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("the session would hold ", bytes,
                                                     " bytes, more than session.max_bytes = ", limits.maxBytes,
                                                     "; release some tensors"));
  }
  return absl::OkStatus();
}

bool ClientSession::redistribute(const v1::Command& command) {
  const v1::Redistribute& wanted = command.redistribute();
  const auto it = tensors_.find(wanted.tensor());
  OperandFailurePtr failure;
  if (it == tensors_.end()) {
    failure = unknownTensor(wanted.tensor(), "redistribute", command.site());
  } else {
    failure = it->second.failure;
  }
  if (failure == nullptr) {
    const TensorLayout* layout = it->second.layout;
    absl::StatusOr<Placements> to = fromWire(wanted.placements());
    if (to.ok()) to = normalize(*std::move(to), layout->mesh->mesh.dims(), static_cast<int>(layout->meta.shape.size()));
    if (!to.ok()) {
      failure = fail(to.status(), "redistribute", command.site());
    } else {
      absl::StatusOr<PlannedOperator*> plan = services_->planner->planRedistribute(layout, *to);
      if (!canAppend(layout->mesh->group)) return false;
      absl::Status status = plan.status();
      if (status.ok()) status = services_->executor->error(layout->mesh->group);
      if (status.ok()) status = checkQuota((*plan)->outputs);
      if (status.ok()) {
        const OperandId input = it->second.id;
        const OperandId output = publish(*plan, {&input, 1}, command.site());
        ++operators_;
        addTensor(wanted.output(), {output, (*plan)->outputs[0], nullptr});
        return true;
      }
      failure = fail(status, "redistribute", command.site());
    }
  }
  poison(wanted.output(), 1, failure);
  return true;
}

// --- values in ---

absl::StatusOr<TensorLayout> ClientSession::checkPut(const v1::Put& put) const {
  absl::StatusOr<const PlacedMesh*> placedOn = mesh(put.mesh());
  if (!placedOn.ok()) return placedOn.status();
  const DeviceMesh& deviceMesh = (*placedOn)->mesh;
  absl::StatusOr<TensorMeta> meta = fromWire(put.meta());
  if (!meta.ok()) return meta.status();
  meta->strides = contiguousStrides(meta->shape);
  absl::StatusOr<Placements> placements = fromWire(put.placements());
  if (!placements.ok()) return placements.status();
  placements = normalize(*std::move(placements), deviceMesh.dims(), static_cast<int>(meta->shape.size()));
  if (!placements.ok()) return placements.status();
  std::uint64_t bytes = static_cast<std::uint64_t>(meta->bytes());
  if (put.parts()) {
    if (put.part_shapes_size() != deviceMesh.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(put.part_shapes_size(), " parts for the ", deviceMesh.size(), " ranks of the mesh"));
    }
    bytes = 0;
    for (int i = 0; i < put.part_shapes_size(); ++i) {
      const std::vector<std::int64_t> given(put.part_shapes(i).values().begin(), put.part_shapes(i).values().end());
      absl::StatusOr<TensorMeta> part = makeMeta(meta->dtype, given);
      if (!part.ok()) return part.status();
      const Rank rank = deviceMesh.ranks()[static_cast<std::size_t>(i)];
      const std::vector<std::int64_t> expected =
          localShape(meta->shape, deviceMesh, *placements, *deviceMesh.coordinate(rank));
      if (given != expected) {
        return absl::InvalidArgumentError(absl::StrCat(
            "rank ", rank, "'s part of ", meta->toString(), " ", toString(*placements), " must be of shape ",
            localShapeText(expected), ", not ", localShapeText(given), ": parts are split as torch.chunk does"));
      }
      bytes += static_cast<std::uint64_t>(part->bytes());
    }
  }
  if (put.total_bytes() != bytes || put.inline_bytes().size() > bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(meta->toString(), " takes ", bytes, " bytes, the put announces ", put.total_bytes()));
  }
  return TensorLayout{*std::move(meta), *placedOn, *std::move(placements)};
}

bool ClientSession::put(const v1::Put& put, std::uint32_t siteId) {
  if (incoming_ == nullptr) {
    incoming_ = std::make_unique<Incoming>();
    Incoming& incoming = *incoming_;
    incoming.site = siteId;
    incoming.tensor = put.tensor();
    incoming.totalBytes = put.total_bytes();
    absl::StatusOr<TensorLayout> layout = checkPut(put);
    absl::Status status = layout.status();
    if (status.ok()) {
      incoming.layout = services_->layouts->intern(*std::move(layout));
      status = checkQuota({});
    }
    v1::Upload& upload = incoming.upload;
    if (status.ok()) {
      toWire(incoming.layout->mesh->mesh, upload.mutable_mesh());
      toWire(incoming.layout->meta, upload.mutable_meta());
      toWire(incoming.layout->placements, upload.mutable_placements());
      upload.set_parts(put.parts());
      *upload.mutable_part_shapes() = put.part_shapes();
      if (put.total_bytes() > kInlineBytes) {
        absl::StatusOr<Segment> segment = Segment::reserve("dtorch-put", put.total_bytes());
        status = segment.status();
        if (segment.ok()) incoming.segment = *std::move(segment);
      }
    }
    if (!status.ok()) incoming.failure = fail(status, "put", siteId);
    if (!put.inline_bytes().empty()) receive(0, put.inline_bytes());
  } else if (!incoming_->waiting) {
    protocolError(absl::InvalidArgumentError(absl::StrCat(
        "a put of tensor ", put.tensor(), " before the one of tensor ", incoming_->tensor, " is complete")));
    return true;
  }
  return finishPut();
}

void ClientSession::receive(std::uint64_t offset, const std::string& data) {
  Incoming& incoming = *incoming_;
  incoming.received = offset + data.size();
  if (incoming.failure != nullptr) return;
  if (incoming.segment.size() > 0) {
    if (data.empty()) return;
    if (absl::Status status = incoming.segment.commit(offset, data.size()); !status.ok()) {
      incoming.failure = fail(std::move(status), "put", incoming.site);
      incoming.segment = {};
      return;
    }
    std::memcpy(incoming.segment.data() + offset, data.data(), data.size());
  } else {
    incoming.upload.mutable_inline_bytes()->append(data);
  }
}

bool ClientSession::putChunk(const v1::PutChunk& chunk) {
  if (incoming_ == nullptr || incoming_->tensor != chunk.tensor()) {
    protocolError(absl::InvalidArgumentError(
        absl::StrCat("bytes of tensor ", chunk.tensor(), " without a put that waits for them")));
    return true;
  }
  Incoming& incoming = *incoming_;
  // Back after waiting for the group: these bytes are in already.
  const bool again = incoming.waiting;
  if (!again) {
    if (chunk.offset() != incoming.received || chunk.data().size() > incoming.totalBytes - incoming.received) {
      protocolError(absl::InvalidArgumentError(
          absl::StrCat("bytes ", chunk.offset(), " to ", chunk.offset() + chunk.data().size(), " of tensor ",
                       chunk.tensor(), "; expected from ", incoming.received, ", ", incoming.totalBytes, " in all")));
      return true;
    }
    receive(chunk.offset(), chunk.data());
  }
  return finishPut();
}

bool ClientSession::finishPut() {
  Incoming& incoming = *incoming_;
  if (incoming.received < incoming.totalBytes) return true;
  if (incoming.failure == nullptr) {
    const GroupId group = incoming.layout->mesh->group;
    if (!canAppend(group)) {
      incoming.waiting = true;
      return false;
    }
    if (const absl::Status& error = services_->executor->error(group); !error.ok()) {
      incoming.failure = fail(error, "put", incoming.site);
    } else {
      groups_.insert(group);
      if (incoming.segment.size() > 0) {
        toWire(incoming.segment.ref(), incoming.upload.mutable_segment());
      }
      const OperandId operand = nextOperand_++;
      incoming.upload.set_operand(operand);
      *services_->executor->appendCommand(group, incoming.totalBytes, std::move(incoming.segment))->mutable_upload() =
          std::move(incoming.upload);
      addTensor(incoming.tensor, {operand, incoming.layout, nullptr});
    }
  }
  if (incoming.failure != nullptr) poison(incoming.tensor, 1, incoming.failure);
  incoming_.reset();
  return true;
}

// --- values out ---

bool ClientSession::get(const v1::Command& command) {
  const v1::Get& wanted = command.get();
  const auto it = tensors_.find(wanted.tensor());
  if (it == tensors_.end()) {
    FutureTable::sendError(channel_.get(), wanted.future(),
                           unknownTensor(wanted.tensor(), "get", command.site()).get());
    return true;
  }
  if (it->second.failure != nullptr) {
    FutureTable::sendError(channel_.get(), wanted.future(), it->second.failure.get());
    return true;
  }
  const TensorLayout* layout = it->second.layout;
  const DeviceMesh& deviceMesh = layout->mesh->mesh;
  const GroupId group = layout->mesh->group;
  if (!canAppend(group)) return false;
  absl::Status status = services_->executor->error(group);
  if (status.ok() && wanted.local()) status = deviceMesh.coordinate(wanted.rank()).status();
  OperandId operand = it->second.id;
  const bool gather = !wanted.local() && !isAllReplicate(layout->placements);
  PlannedOperator* plan = nullptr;
  if (status.ok() && gather) {
    absl::StatusOr<PlannedOperator*> planned =
        services_->planner->planRedistribute(layout, allReplicate(deviceMesh.dims()));
    status = planned.status();
    if (status.ok()) plan = *planned;
  }
  if (!status.ok()) {
    FutureTable::sendError(channel_.get(), wanted.future(), fail(status, "get", command.site()).get());
    return true;
  }
  if (plan != nullptr) operand = publish(plan, {&operand, 1}, command.site());
  groups_.insert(group);
  v1::Fetch* fetch = services_->executor->appendCommand(group)->mutable_fetch();
  fetch->set_operand(operand);
  fetch->set_rank(wanted.local() ? wanted.rank() : deviceMesh.ranks()[0]);
  fetch->set_future(services_->futures->await(id_, channel_, wanted.future(), group, operand));
  if (plan != nullptr) services_->executor->appendCommand(group)->mutable_discard()->add_operands(operand);
  return true;
}

void ClientSession::describe(const v1::Describe& describe) {
  const auto it = tensors_.find(describe.tensor());
  if (it == tensors_.end()) {
    return FutureTable::sendError(channel_.get(), describe.future(),
                                  unknownTensor(describe.tensor(), "describe", 0).get());
  }
  if (it->second.failure != nullptr) {
    return FutureTable::sendError(channel_.get(), describe.future(), it->second.failure.get());
  }
  const TensorLayout* layout = it->second.layout;
  auto message = std::make_shared<v1::DaemonMessage>();
  v1::FutureResult* result = message->mutable_result();
  result->set_future(describe.future());
  toWire(layout->meta, result->mutable_meta());
  toWire(layout->placements, result->mutable_placements());
  for (const auto& [number, placedOn] : meshes_) {
    if (placedOn == layout->mesh) result->set_mesh(number);
  }
  result->set_done(true);
  channel_->send(std::move(message));
}

bool ClientSession::synchronize(const v1::Synchronize& synchronize) {
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

void ClientSession::finishSynchronize(FutureId future) {
  for (const OperandFailurePtr& failure : unobserved_) {
    if (failure->observed) continue;
    FutureTable::sendError(channel_.get(), future, failure.get());
    std::erase_if(unobserved_, [](const OperandFailurePtr& f) { return f->observed; });
    return;
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

void ClientSession::failBrokenGroups(Rank rank) {
  // What was in flight is lost, whether or not somebody waits for it: the next synchronize says so.
  for (auto it = groups_.begin(); it != groups_.end();) {
    const auto current = it++;
    const absl::Status& error = services_->executor->error(*current);
    if (error.ok()) continue;
    remember(std::make_shared<OperandFailure>(OperandFailure{error, "", rank, ""}));
    groups_.erase(current);
  }
  std::vector<std::uint64_t> ended;
  for (const auto& [fence, waiting] : fences_) {
    if (!services_->executor->error(waiting.group).ok()) ended.push_back(fence);
  }
  for (const std::uint64_t fence : ended) fenceReached(fence);
}

void ClientSession::release(const v1::Release& release) {
  std::vector<OperandId> released;
  GroupId group = 0;
  for (const TensorId tensor : release.tensors()) {
    const auto it = tensors_.find(tensor);
    if (it == tensors_.end()) continue;
    const Operand operand = std::move(it->second);
    tensors_.erase(it);
    if (operand.id == 0) continue;
    tensorBytes_ -= static_cast<std::uint64_t>(operand.layout->meta.bytes());
    failedOperands_.erase(operand.id);
    if (group != operand.layout->mesh->group && !released.empty()) {
      services_->executor->discard(group, released);
      released.clear();
    }
    group = operand.layout->mesh->group;
    released.push_back(operand.id);
  }
  if (!released.empty()) services_->executor->discard(group, released);
}

void ClientSession::close() {
  closed_ = true;
  request_.reset();
  services_->futures->dropSession(id_);
  v1::Release all;
  for (const auto& [tensor, operand] : tensors_) all.add_tensors(tensor);
  release(all);
  services_->executor->flush();
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
  status.set_tensor_bytes(static_cast<std::int64_t>(tensorBytes_));
  status.set_operators(operators_);
  status.set_failed(failed_);
  status.set_futures(services_->futures->pendingOf(id_) + fences_.size());
  return status;
}

}  // namespace dtorch
