#include "worker/scheduler.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "comm/store/shared_allocator.h"
#include "proto/codec.h"
#include "proto/segment_codec.h"
#include "worker/kernel_runner.h"
#include "worker/transfer.h"

namespace dtorch {
namespace {
// So many tasks are worth a wake-up, however brief they are.
constexpr int kUnheardTasks = 8;
}  // namespace

absl::Status Scheduler::enqueue(v1::WorkerCommand& command, OperatorNumber number) {
  switch (command.other_case()) {
    case v1::WorkerCommand::kDefinePlan:
      if (absl::Status status = definePlan(command.define_plan()); !status.ok()) return status;
      break;  // its first run may come in the same command
    case v1::WorkerCommand::kUpload:
      return upload(*command.mutable_upload(), command.site());
    case v1::WorkerCommand::kFetch:
      fetch(command.fetch());
      return absl::OkStatus();
    case v1::WorkerCommand::kDiscard:
      for (const OperandId id : command.discard().operands()) operands_.discard(id);
      if (const SessionId session = command.discard().ended_session(); session != 0) {
        // After its last operator and its last fetch.
        enqueueJob(StreamKind::kCompute, [session, &values = values_](KernelRunner& runner) {
          runner.endSession(session);
          values.forget(session);
        });
        enqueueJob(StreamKind::kCommunication, [session, &values = values_](KernelRunner&) { values.forget(session); });
      }
      return absl::OkStatus();
    case v1::WorkerCommand::kFence: {
      v1::ReportItem item;
      item.mutable_fence()->set_fence(command.fence().fence());
      reportAfterAll(item);
      return absl::OkStatus();
    }
    case v1::WorkerCommand::kValueTaken:
      values_.drop(command.value_taken().future());
      return absl::OkStatus();
    case v1::WorkerCommand::kForgetPlans:
      forgetPlans(command.forget_plans().below());
      return absl::OkStatus();
    case v1::WorkerCommand::kPeers:
      setPeers(command.peers());
      return absl::OkStatus();
    case v1::WorkerCommand::kCancel:
      hold(command.cancel());
      return absl::OkStatus();
    case v1::WorkerCommand::kCancelDecided:
      decide(command.cancel_decided());
      return absl::OkStatus();
    case v1::WorkerCommand::OTHER_NOT_SET:
      if (command.plan() != 0) break;
      [[fallthrough]];
    default:
      return absl::InvalidArgumentError("a command of a newer protocol, or of none");
  }
  return command.plan() == 0 ? absl::OkStatus() : runPlan(command, number);
}

absl::Status Scheduler::definePlan(const v1::Plan& wire) {
  if (wire.id() == 0) return absl::InvalidArgumentError("a plan has number 0");
  absl::StatusOr<std::unique_ptr<const Plan>> plan = Plan::create(wire, rank_, device_);
  if (!plan.ok()) return plan.status();
  if (!plans_.emplace(wire.id(), *std::move(plan)).second) {
    return absl::InvalidArgumentError(absl::StrCat("plan ", wire.id(), " is defined twice"));
  }
  return absl::OkStatus();
}

void Scheduler::forgetPlans(PlanId below) {
  using Plans = std::vector<std::unique_ptr<const Plan>>;
  const std::shared_ptr<Plans> forgotten(new Plans, [&destroying = destroyingPlans_](Plans* plans) {
    const absl::MutexLock lock(&destroying);
    delete plans;
  });
  for (auto it = plans_.begin(); it != plans_.end();) {
    const auto current = it++;
    if (current->first >= below) continue;
    forgotten->push_back(std::move(current->second));
    plans_.erase(current);
  }
  // Tasks that are queued still use them: they go with the last of these two jobs.
  for (const StreamKind stream : {StreamKind::kCompute, StreamKind::kCommunication}) {
    enqueueJob(stream, [forgotten](KernelRunner&) {});
  }
}

absl::Status Scheduler::runPlan(const v1::WorkerCommand& command, OperatorNumber number) {
  const auto it = plans_.find(command.plan());
  if (it == plans_.end()) return absl::InvalidArgumentError(absl::StrCat("plan ", command.plan(), " was not defined"));
  const Plan& plan = *it->second;
  if (!plan.coordinate) return absl::OkStatus();
  if (!plan.error.ok()) {
    failCall(plan, command, number, plan.error);
    return absl::OkStatus();
  }
  if (static_cast<std::uint32_t>(command.inputs_size()) != plan.inputs) {
    return absl::InvalidArgumentError(absl::StrCat("operator ", number, " gives plan ", plan.id, " ",
                                                   command.inputs_size(), " inputs; it has ", plan.inputs));
  }
  absl::InlinedVector<OperandRef, 4> operands;
  for (const OperandId id : command.inputs()) operands.push_back(inputOf(id));
  std::shared_ptr<CallState> call;
  if (plan.segments.size() > 1) call = std::make_shared<CallState>();
  Ticket previous = 0;
  for (std::uint32_t i = 0; i < plan.segments.size(); ++i) {
    const PlanSegment& segment = plan.segments[i];
    const bool last = i + 1 == plan.segments.size();
    Ticket needed = previous;
    for (const std::uint32_t input : segment.inputs) {
      const Operand& operand = *operands[input];  // NOLINT(bugprone-use-after-move): the last round moves them
      if (operand.producer != segment.stream) needed = std::max(needed, operand.ticket);
    }
    previous = nextTicket(segment.stream);
    if (last) {
      for (std::size_t out = 0; out < plan.outputs.size(); ++out) {
        operands.push_back(operands_.add(command.first_output() + out, segment.stream, previous));
      }
    }
    Task& task = streamOf(segment.stream).stage();
    task.waitFor = order_.enqueue(segment.stream, needed, segment.mutates);
    task.plan = &plan;
    task.segment = i;
    task.number = number;
    task.site = command.site();
    task.session = sessionOf(command.first_output());
    task.validate = command.validate();
    task.call = call;
    if (last) {
      task.operands = std::move(operands);
    } else {
      task.operands = operands;
    }
    publish(segment.stream);
  }
  return absl::OkStatus();
}

void Scheduler::failCall(const Plan& plan, const v1::WorkerCommand& command, OperatorNumber number,
                         const absl::Status& why) {
  std::vector<OperandRef> outputs;
  for (std::size_t out = 0; out < plan.outputs.size(); ++out) {
    outputs.push_back(
        operands_.add(command.first_output() + out, StreamKind::kCompute, nextTicket(StreamKind::kCompute)));
  }
  auto failure = std::make_shared<Failure>(plan.name, why, rank_);
  failure->operatorName = plan.name;
  failure->root = number;
  failure->site = command.site();
  enqueueJob(StreamKind::kCompute, [outputs = std::move(outputs), failure = FailurePtr(std::move(failure)),
                                    session = sessionOf(command.first_output()),
                                    number](KernelRunner& runner) { runner.fail(outputs, failure, session, number); });
}

OperandRef Scheduler::inputOf(OperandId id) {
  if (const OperandRef* operand = operands_.find(id)) return *operand;
  auto missing = c10::make_intrusive<Operand>(id, StreamKind::kCompute, 0);
  missing->fail(std::make_shared<const Failure>(
      "reading an operand", absl::InternalError(absl::StrCat("operand ", id, " is not there")), rank_));
  return missing;
}

absl::Status Scheduler::upload(v1::Upload& wire, std::uint32_t site) {
  absl::StatusOr<DeviceMesh> mesh = fromWire(wire.mesh());
  if (!mesh.ok()) return mesh.status();
  absl::StatusOr<std::vector<std::int64_t>> coordinate = mesh->coordinate(rank_);
  if (!coordinate.ok()) return absl::OkStatus();  // the tensor has no part here
  const OperandRef operand = operands_.add(wire.operand(), StreamKind::kCompute, nextTicket(StreamKind::kCompute));
  const bool brief = !wire.has_segment() && wire.inline_bytes().size() <= kBriefBytes;
  absl::StatusOr<UploadTask> task = UploadTask::create(wire, *std::move(mesh), *std::move(coordinate));
  Job upload = [operand, site, task = std::move(task), &values = values_](KernelRunner& runner) {
    const TensorOwnerScope owner(sessionOf(operand->id));
    absl::StatusOr<at::Tensor> local = task.ok() ? task->run(sessionOf(operand->id), values) : task.status();
    if (local.ok()) {
      operand->set(*std::move(local));
      return;
    }
    auto failure = std::make_shared<Failure>("upload of a tensor", local.status(), runner.rank());
    failure->site = site;
    runner.fail({operand}, failure, sessionOf(operand->id), 0);
  };
  enqueueJob(StreamKind::kCompute, std::move(upload), brief);
  return absl::OkStatus();
}

void Scheduler::fetch(const v1::Fetch& wire) {
  if (wire.rank() != rank_) return;
  OperandRef operand = inputOf(wire.operand());
  // On the stream that makes the operand, so that neither stream waits for the other one.
  const StreamKind stream = operand->producer;
  Job report = [fetched = operand.get(), future = wire.future(), &values = values_](KernelRunner& runner) {
    v1::FetchedValue* value = runner.reports().addAwaited()->mutable_value();
    value->set_future(future);
    FailurePtr failure = runner.failureOf(*fetched);
    if (failure == nullptr) {
      // The last use of what was made for this value alone, as all of a sharded tensor is.
      const bool last = c10::raw::intrusive_ptr::use_count(fetched) == 1;
      at::Tensor tensor = last ? std::move(fetched->value) : fetched->value;
      const absl::Status status = fillValue(std::move(tensor), sessionOf(fetched->id), values, value);
      if (!status.ok()) failure = std::make_shared<const Failure>("fetch of a value", status, runner.rank());
    }
    if (failure != nullptr) {
      failure->toWire(value->mutable_error());
      value->set_root(failure->root);
      value->set_site(failure->site);
    }
  };
  enqueueJob(stream, std::move(report), true, {std::move(operand)});
}

void Scheduler::setPeers(const v1::Peers& wire) {
  std::vector<PeerRef> peers;
  for (const v1::Peer& peer : wire.peers()) peers.push_back({peer.rank(), peer.pid(), fromWire(peer.mailbox())});
  for (const Rank replaced : wire.replaced()) {
    enqueueJob(StreamKind::kCompute, [replaced](KernelRunner& runner) { runner.rankReplaced(replaced); });
  }
  std::vector<std::vector<Rank>> renewed;
  for (const v1::BrokenGroup& group : wire.renewed()) renewed.emplace_back(group.ranks().begin(), group.ranks().end());
  // In the communication stream's order: what was enqueued before still means the old peers.
  enqueueJob(StreamKind::kCommunication,
             [peers = std::move(peers), epoch = wire.epoch(), renewed = std::move(renewed),
              &groups = groups_](KernelRunner&) mutable { groups.setPeers(std::move(peers), epoch, renewed); });
}

void Scheduler::hold(const v1::Cancel& wire) {
  const CancelGate::Begun begun = gate_.hold(wire.cancel(), wire.session(), wire.first_operator(), wire.last_operator(),
                                             {wire.only().begin(), wire.only().end()});
  v1::Report report;
  v1::CancelReached* reached = report.add_items()->mutable_cancel_reached();
  reached->set_cancel(wire.cancel());
  reached->mutable_begun()->Add(begun.begin(), begun.end());
  reporter_.send(&report);
}

void Scheduler::decide(const v1::CancelDecided& wire) {
  CancelGate::Begun furthest{};
  const auto streams = std::min<std::size_t>(kStreams, static_cast<std::size_t>(wire.furthest_size()));
  std::copy_n(wire.furthest().begin(), streams, furthest.begin());
  gate_.decide(wire.cancel(), furthest);
  // Behind all that it is about.
  for (const StreamKind stream : {StreamKind::kCompute, StreamKind::kCommunication}) {
    enqueueJob(
        stream, [&gate = gate_, cancel = wire.cancel()](KernelRunner&) { gate.passed(cancel); }, true);
  }
}

void Scheduler::reportAfterAll(const v1::ReportItem& item) {
  const auto report = [item](KernelRunner& runner) {
    ReportBatch& reports = runner.reports();
    *(item.has_frame_done() ? reports.addCredit() : reports.addAwaited()) = item;
  };
  const KernelStream<Task>& communication = streamOf(StreamKind::kCommunication);
  if (communication.done() == order_.issued(StreamKind::kCommunication)) {
    enqueueJob(StreamKind::kCompute, report, true);
    return;
  }
  const auto remaining = std::make_shared<std::atomic<std::size_t>>(kStreams);
  for (const StreamKind stream : {StreamKind::kCompute, StreamKind::kCommunication}) {
    enqueueJob(
        stream,
        [report, remaining](KernelRunner& runner) {
          runner.reports().flush();
          if (remaining->fetch_sub(1) == 1) report(runner);
        },
        true);
  }
}

void Scheduler::enqueueJob(StreamKind stream, Job job, bool brief, absl::Span<const OperandRef> operands) {
  Task& task = streamOf(stream).stage();
  task.waitFor = order_.enqueue(stream, 0, false);
  task.job = std::move(job);
  task.brief = brief;
  task.operands.assign(operands.begin(), operands.end());
  publish(stream);
}

void Scheduler::publish(StreamKind stream) {
  streamOf(stream).publish();
  if (++unheard_ > kUnheardTasks) wakeStreams();
}

void Scheduler::wakeStreams() {
  for (KernelStream<Task>& stream : streams_) stream.wake();
  unheard_ = 0;
}

}  // namespace dtorch
