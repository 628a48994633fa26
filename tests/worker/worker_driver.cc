#include "tests/worker/worker_driver.h"

#include <stdlib.h>

#include <array>
#include <filesystem>
#include <numeric>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "proto/codec.h"
#include "proto/topics.h"

namespace dtorch {
namespace {

constexpr std::chrono::seconds kPatience{30};

std::string makeFolder() {
  std::string folder = (std::filesystem::temp_directory_path() / "dtorch-worker-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) throw std::runtime_error("cannot make " + folder);
  return folder;
}

}  // namespace

WorkerDriver::WorkerDriver(Transport transport)
    : context_(1), publisher_(context_, zmq::socket_type::xpub), puller_(context_, zmq::socket_type::pull) {
  if (transport == Transport::kIpc) folder_ = makeFolder();
  const std::string base = folder_.empty() ? "inproc://" : "ipc://" + folder_ + "/";
  frames_ = base + "frames";
  reports_ = base + "reports";
  publisher_.set(zmq::sockopt::sndhwm, 0);
  publisher_.set(zmq::sockopt::linger, 0);
  puller_.set(zmq::sockopt::rcvhwm, 0);
  publisher_.bind(frames_);
  puller_.bind(reports_);
}

WorkerDriver::~WorkerDriver() {
  publisher_.close();
  puller_.close();
  if (!folder_.empty()) std::filesystem::remove_all(folder_);
}

void WorkerDriver::awaitWorkers(const std::vector<Rank>& ranks) {
  for (const Rank rank : ranks) {
    hellos_[rank] = await(rank, "its hello", [](const v1::ReportItem& item) { return item.has_hello(); }).hello();
    awaitSubscription(workerTopic(rank, 0));
    ownSequences_[rank] = 0;
  }
}

void WorkerDriver::join(GroupId group, const std::vector<Rank>& ranks) {
  v1::WorkerCommand peers;
  peers.mutable_peers()->set_epoch(nextId_++);
  for (const auto& [rank, hello] : hellos_) {
    v1::Peer* peer = peers.mutable_peers()->add_peers();
    peer->set_rank(rank);
    peer->set_pid(hello.pid());
    *peer->mutable_mailbox() = hello.mailbox();
  }
  v1::WorkerCommand join;
  join.mutable_join_group()->set_group(group);
  for (const Rank rank : ranks) {
    sendTo(rank, peers);
    sendTo(rank, join);
  }
  for (const Rank rank : ranks) awaitSubscription(groupMarkerTopic(group, rank));
}

OperatorNumber WorkerDriver::send(GroupId group, const std::vector<v1::WorkerCommand>& commands) {
  v1::Frame frame;
  OperatorNumber firstRun = 0;
  frame.set_sequence(++sequences_[group]);
  frame.set_first_operator(nextOperator_);
  for (const v1::WorkerCommand& command : commands) {
    *frame.add_commands() = command;
    if (command.plan() != 0 && firstRun == 0) firstRun = nextOperator_;
    if (command.plan() != 0 || command.has_upload()) ++nextOperator_;
  }
  sendRaw(groupTopic(group), frame.SerializeAsString());
  return firstRun;
}

void WorkerDriver::sendTo(Rank rank, const v1::WorkerCommand& command) {
  v1::Frame frame;
  frame.set_sequence(++ownSequences_[rank]);
  *frame.add_commands() = command;
  sendRaw(workerTopic(rank, 0), frame.SerializeAsString());
}

void WorkerDriver::sendRaw(const std::string& topic, const std::string& payload) {
  publisher_.send(zmq::buffer(topic), zmq::send_flags::sndmore);
  publisher_.send(zmq::buffer(payload), zmq::send_flags::none);
}

v1::ReportItem WorkerDriver::await(Rank rank, const std::string& what,
                                   const std::function<bool(const v1::ReportItem&)>& wanted) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  for (std::size_t seen = 0;;) {
    for (; seen < inbox_.size(); ++seen) {
      if (inbox_[seen].first != rank || !wanted(inbox_[seen].second)) continue;
      v1::ReportItem item = std::move(inbox_[seen].second);
      inbox_.erase(inbox_.begin() + static_cast<std::ptrdiff_t>(seen));
      return item;
    }
    receive(deadline, absl::StrCat("rank ", rank, ": ", what));
  }
}

v1::FetchedValue WorkerDriver::fetch(GroupId group, Rank rank, OperandId operand) {
  const FutureId future = nextId_++;
  v1::WorkerCommand command;
  command.mutable_fetch()->set_future(future);
  command.mutable_fetch()->set_operand(operand);
  command.mutable_fetch()->set_rank(rank);
  send(group, {command});
  return await(rank, absl::StrCat("the value of operand ", operand),
               [&](const v1::ReportItem& item) { return item.has_value() && item.value().future() == future; })
      .value();
}

v1::OperatorFailed WorkerDriver::awaitFailure(Rank rank, OperatorNumber number) {
  return await(
             rank, absl::StrCat("the failure of operator ", number),
             [&](const v1::ReportItem& item) { return item.has_failed() && item.failed().operator_number() == number; })
      .failed();
}

v1::WorkerFault WorkerDriver::awaitFault(Rank rank) {
  return await(rank, "its fault", [](const v1::ReportItem& item) { return item.has_fault(); }).fault();
}

void WorkerDriver::drain(GroupId group, Rank rank) {
  const std::uint64_t fence = nextId_++;
  v1::WorkerCommand command;
  command.mutable_fence()->set_fence(fence);
  send(group, {command});
  await(rank, absl::StrCat("fence ", fence),
        [&](const v1::ReportItem& item) { return item.has_fence() && item.fence().fence() == fence; });
}

std::vector<v1::ReportItem> WorkerDriver::items(Rank rank) {
  takeAvailable();
  std::vector<v1::ReportItem> items;
  for (const auto& [from, item] : inbox_) {
    if (from == rank) items.push_back(item);
  }
  return items;
}

void WorkerDriver::awaitSubscription(const std::string& topic, bool present) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  takeAvailable();
  while (subscriptions_.contains(topic) != present) {
    receive(deadline, absl::StrCat(present ? "subscription of " : "end of the subscription of ", topic));
  }
}

void WorkerDriver::receive(std::chrono::steady_clock::time_point deadline, const std::string& what) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  std::array<zmq::pollitem_t, 2> polled{
      {{publisher_.handle(), 0, ZMQ_POLLIN, 0}, {puller_.handle(), 0, ZMQ_POLLIN, 0}}};
  if (left.count() <= 0 || zmq::poll(polled, left) == 0) throw std::runtime_error("did not come: " + what);
  takeAvailable();
}

void WorkerDriver::takeAvailable() {
  zmq::message_t message;
  while (publisher_.recv(message, zmq::recv_flags::dontwait)) {
    const std::string topic = message.to_string().substr(1);
    if (*message.data<char>() == 1) {
      subscriptions_.insert(topic);
    } else {
      subscriptions_.erase(topic);
    }
  }
  while (puller_.recv(message, zmq::recv_flags::dontwait)) {
    v1::Report report;
    if (!report.ParseFromArray(message.data(), static_cast<int>(message.size()))) {
      throw std::runtime_error("a report does not parse");
    }
    for (v1::ReportItem& item : *report.mutable_items()) inbox_.emplace_back(report.rank(), std::move(item));
  }
}

DeviceMesh cpuMesh(std::vector<std::int64_t> shape) {
  std::int64_t size = 1;
  for (const std::int64_t extent : shape) size *= extent;
  std::vector<Rank> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return *DeviceMesh::create(DeviceType::kCpu, std::move(shape), std::move(ranks));
}

v1::Plan makePlan(PlanId id, const DeviceMesh& mesh, std::uint32_t inputs, const std::string& name) {
  v1::Plan plan;
  plan.set_id(id);
  toWire(mesh, plan.mutable_mesh());
  plan.set_inputs(inputs);
  plan.set_name(name);
  return plan;
}

void addKernel(v1::Plan& plan, const std::string& op, const std::vector<Value>& arguments, std::uint32_t outputs,
               bool mutates) {
  v1::KernelStep* kernel = plan.add_steps()->mutable_kernel();
  kernel->set_operator_name(op);
  for (const Value& argument : arguments) toWire(argument, kernel->add_arguments());
  kernel->set_outputs(outputs);
  kernel->set_mutates(mutates);
}

void addConvert(v1::Plan& plan, std::uint32_t input, const std::vector<std::int64_t>& shape, const Placements& from,
                const Placements& to) {
  v1::ConvertStep* convert = plan.add_steps()->mutable_convert();
  convert->set_input(input);
  convert->mutable_shape()->Add(shape.begin(), shape.end());
  toWire(from, convert->mutable_from());
  toWire(to, convert->mutable_to());
}

void addOutput(v1::Plan& plan, std::uint32_t slot, const TensorMeta& meta, const Placements& placements) {
  plan.add_outputs(slot);
  toWire(meta, plan.add_output_metas());
  toWire(placements, plan.add_output_placements()->mutable_placements());
}

v1::WorkerCommand define(const v1::Plan& plan) {
  v1::WorkerCommand command;
  *command.mutable_define_plan() = plan;
  return command;
}

v1::WorkerCommand run(PlanId plan, const std::vector<OperandId>& inputs, OperandId firstOutput) {
  v1::WorkerCommand command;
  command.set_plan(plan);
  command.mutable_inputs()->Add(inputs.begin(), inputs.end());
  command.set_first_output(firstOutput);
  return command;
}

v1::WorkerCommand discard(const std::vector<OperandId>& operands) {
  v1::WorkerCommand command;
  command.mutable_discard()->mutable_operands()->Add(operands.begin(), operands.end());
  return command;
}

v1::WorkerCommand upload(OperandId operand, const DeviceMesh& mesh, const TensorMeta& meta,
                         const Placements& placements, const std::string& bytes) {
  v1::WorkerCommand command;
  v1::Upload* out = command.mutable_upload();
  out->set_operand(operand);
  toWire(mesh, out->mutable_mesh());
  toWire(meta, out->mutable_meta());
  toWire(placements, out->mutable_placements());
  out->set_inline_bytes(bytes);
  return command;
}

}  // namespace dtorch
