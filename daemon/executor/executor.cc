#include "daemon/executor/executor.h"

#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "proto/codec.h"
#include "proto/topics.h"
#include "proto/uninterrupted.h"
#include "proto/version.h"

namespace dtorch {
namespace {

// A frame leaves at the latest when it holds so many commands, so that workers start while a long batch is planned.
constexpr int kFrameCommands = 128;
// Or when it holds this part of the time that may be in flight: credit comes back by frames.
constexpr double kFrameTime = 1.0 / 8;
// However long they take: the workers have the next one when one is done.
constexpr std::uint64_t kAlwaysInFlight = 2;
// Of what has never run, so many may be in flight.
constexpr double kUnknownOperators = 128;
constexpr std::uint64_t kFrameBytes = 16u << 20;
constexpr int kLingerMs = 500;
constexpr std::chrono::seconds kCancelPatience(1);
constexpr std::size_t kMaxStreams = 16;  // of a worker
// What a command that is no operator takes of a group's credit, besides its data.
constexpr std::uint64_t kCommandBytes = 4096;

// ZeroMQ removes whatever has the name of a socket that it binds.
absl::Status checkEndpoint(const std::string& endpoint) {
  absl::string_view path = endpoint;
  struct stat info {};
  if (!absl::ConsumePrefix(&path, "ipc://") || ::lstat(std::string(path).c_str(), &info) != 0) return absl::OkStatus();
  if (S_ISSOCK(info.st_mode)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(path, " is in the way of a socket, and is none: remove it"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> Executor::create(zmq::context_t* context, const ExecutorOptions& options,
                                                           ExecutorListener* listener) {
  for (const std::string& endpoint : {options.frameEndpoint, options.reportEndpoint}) {
    if (absl::Status status = checkEndpoint(endpoint); !status.ok()) return status;
  }
  try {
    zmq::socket_t frames(*context, zmq::socket_type::xpub);
    // Flow control is the groups' credit: ZeroMQ itself must neither drop nor block.
    frames.set(zmq::sockopt::sndhwm, 0);
    frames.set(zmq::sockopt::xpub_nodrop, true);
    frames.set(zmq::sockopt::linger, kLingerMs);
    frames.bind(options.frameEndpoint);
    zmq::socket_t reports(*context, zmq::socket_type::pull);
    reports.set(zmq::sockopt::rcvhwm, 0);
    reports.set(zmq::sockopt::linger, 0);
    reports.bind(options.reportEndpoint);
    return std::unique_ptr<Executor>(new Executor(std::move(frames), std::move(reports), options, listener));
  } catch (const zmq::error_t& error) {
    return absl::UnavailableError(
        absl::StrCat("binding ", options.frameEndpoint, " and ", options.reportEndpoint, ": ", error.what()));
  }
}

Executor::Executor(zmq::socket_t frames, zmq::socket_t reports, const ExecutorOptions& options,
                   ExecutorListener* listener)
    : frames_(std::move(frames)),
      reports_(std::move(reports)),
      options_(options),
      listener_(listener),
      workers_(static_cast<std::size_t>(options.worldSize)),
      costs_(options.maxTimeInFlight / kUnknownOperators) {}

// ZeroMQ leaves the files of its ipc sockets behind.
Executor::~Executor() {
  for (absl::string_view endpoint :
       {absl::string_view(options_.frameEndpoint), absl::string_view(options_.reportEndpoint)}) {
    if (absl::ConsumePrefix(&endpoint, "ipc://")) unlink(std::string(endpoint).c_str());
  }
}

void Executor::handleReports() {
  zmq::message_t message;
  if (postponed() && !handleReport(report_)) return;
  while (uninterrupted([&] { return reports_.recv(message, zmq::recv_flags::dontwait); })) {
    if (report_.ParseFromArray(message.data(), static_cast<int>(message.size()))) {
      if (!handleReport(report_)) break;
    } else if (report_.items_size() > 0 && report_.rank() >= 0 && report_.rank() < options_.worldSize) {
      // The rank is the message's first field. What was lost with the rest cannot be told: the worker must go.
      listener_->onWorkerFault(
          report_.rank(), absl::DataLossError(absl::StrCat("a report of ", message.size(), " bytes does not parse")));
    } else {
      spdlog::error("a report of {} bytes parses neither as a report nor names its worker: dropped", message.size());
    }
  }
  learnCosts();
}

void Executor::handleSubscriptions() {
  zmq::message_t message;
  while (uninterrupted([&] { return frames_.recv(message, zmq::recv_flags::dontwait); })) {
    handleSubscription({static_cast<const char*>(message.data()), message.size()});
  }
}

void Executor::handleSubscription(absl::string_view message) {
  if (message.empty()) return;
  const bool subscribed = message[0] == 1;
  const std::vector<absl::string_view> parts = absl::StrSplit(message.substr(1), '/');
  if (absl::StartsWith(parts[0], "w") && parts.size() >= 2) {
    Rank rank = -1;
    std::uint64_t incarnation = 0;
    if (!absl::SimpleAtoi(parts[0].substr(1), &rank) || rank < 0 || rank >= options_.worldSize) return;
    if (!absl::SimpleAtoi(parts[1], &incarnation)) return;
    WorkerLink* worker = linkTo(rank, incarnation);
    if (worker == nullptr) return;
    worker->subscribed = subscribed;
    if (!subscribed) listener_->onWorkerDisconnected(rank);
    if (subscribed && worker->hello) listener_->onWorkerConnected(rank, worker->greeting);
  } else if (absl::StartsWith(parts[0], "m") && parts.size() >= 2 && subscribed) {
    GroupId id = 0;
    Rank rank = -1;
    if (!absl::SimpleAtoi(parts[0].substr(1), &id) || !absl::SimpleAtoi(parts[1], &rank)) return;
    if (id == 0 || id > groups_.size()) return;
    Group& group = at(id);
    if (std::find(group.ranks.begin(), group.ranks.end(), rank) == group.ranks.end()) return;
    group.joined.insert(rank);
    if (usable(id)) listener_->onGroupUsable(id);
  }
}

Executor::WorkerLink* Executor::linkTo(Rank rank, std::uint64_t incarnation) {
  WorkerLink* link = &workers_[static_cast<std::size_t>(rank)];
  if (incarnation < link->incarnation || (incarnation == link->incarnation && link->ended)) return nullptr;
  if (incarnation > link->incarnation) {
    // The supervisor starts one only where the last has ended.
    if (link->hello && link->gone.ok()) {
      listener_->onWorkerFault(rank, absl::UnavailableError("another worker is there in its place"));
    }
    link->renew(incarnation);
  }
  return link;
}

const v1::Status* Executor::errorOf(const v1::ReportItem& item) {
  if (item.has_failed()) return &item.failed().error();
  return item.has_value() && item.value().has_error() ? &item.value().error() : nullptr;
}

bool Executor::handleReport(const v1::Report& report) {
  const Rank rank = report.rank();
  int next = std::exchange(nextItem_, 0);
  if (rank < 0 || rank >= options_.worldSize) return true;
  WorkerLink* const link = linkTo(rank, report.incarnation());
  if (link == nullptr) return true;
  for (next = std::max(next - 1, 0); next < report.items_size(); ++next) {
    const v1::ReportItem& item = report.items(next);
    if (const v1::Status* error = errorOf(item); error != nullptr && listener_->postpones(*error)) {
      nextItem_ = next + 1;
      return false;
    }
    switch (item.kind_case()) {
      case v1::ReportItem::kHello: {
        if (item.hello().protocol() != kProtocolVersion) {
          listener_->onWorkerFault(
              rank, absl::FailedPreconditionError(absl::StrCat("it speaks protocol ", item.hello().protocol(),
                                                               ", this daemon ", kProtocolVersion)));
          break;
        }
        link->hello = true;
        link->greeting = item.hello();
        if (link->subscribed) listener_->onWorkerConnected(rank, link->greeting);
        break;
      }
      case v1::ReportItem::kFrameDone:
        frameDone(rank, item.frame_done());
        break;
      case v1::ReportItem::kFailed:
        listener_->onOperatorFailed(rank, item.failed());
        break;
      case v1::ReportItem::kOutputs:
        listener_->onOutputs(item.outputs());
        break;
      case v1::ReportItem::kValue:
        listener_->onValue(rank, item.value());
        break;
      case v1::ReportItem::kFence: {
        const auto it = fences_.find(item.fence().fence());
        if (it == fences_.end() || --it->second.missing > 0) break;
        fences_.erase(it);
        listener_->onFence(item.fence().fence());
        break;
      }
      case v1::ReportItem::kCancelReached:
        cancelReached(rank, item.cancel_reached());
        break;
      case v1::ReportItem::kFault:
        listener_->onWorkerFault(rank, fromWire(item.fault().error()));
        break;
      case v1::ReportItem::KIND_NOT_SET:
        break;
    }
  }
  return true;
}

void Executor::frameDone(Rank rank, const v1::FrameDone& done) {
  const GroupId id = done.group();
  if (id > groups_.size()) return;
  if (id == 0 || !at(id).error.ok()) return;  // a worker's own topic needs no credit, a broken group has none
  Group& group = at(id);
  const std::uint64_t first = group.nextSequence - group.inFlight.size();
  const bool inFlight = done.sequence() >= first && done.sequence() < group.nextSequence;
  FrameInFlight* frame = inFlight ? &group.inFlight[done.sequence() - first] : nullptr;
  if (!inFlight || std::erase(frame->missing, rank) == 0) {
    return listener_->onWorkerFault(
        rank, absl::DataLossError(absl::StrCat("it reports frame ", done.sequence(), " of group ", id,
                                               " done, which it does not have or has reported before")));
  }
  if (!frame->missing.empty()) return;
  frame->memory.clear();
  const bool hadCredit = hasCredit(group);
  group.operators -= frame->operators;
  group.bytes -= frame->bytes;
  group.time = group.operators == 0 ? PlanCosts::Seconds(0) : group.time - frame->time;
  if (group.plansDone.empty()) {
    toLearnOf_.push_back(id);
    group.learnSince = std::max(frame->published, group.learned);
  }
  group.plansDone.insert(group.plansDone.end(), frame->plans.begin(), frame->plans.end());
  listener_->onOperatorsDone(frame->operators);
  while (!group.inFlight.empty() && group.inFlight.front().missing.empty()) group.inFlight.pop_front();
  if (!hadCredit && usable(id)) listener_->onGroupUsable(id);
}

void Executor::learnCosts() {
  if (toLearnOf_.empty()) return;
  const Clock::time_point now = Clock::now();
  for (const GroupId id : toLearnOf_) {
    Group& group = at(id);
    costs_.learn(group.plansDone, now - group.learnSince);
    group.learned = now;
    group.plansDone.clear();
  }
  toLearnOf_.clear();
}

absl::StatusOr<GroupId> Executor::groupOf(const std::vector<Rank>& ranks) {
  if (const auto it = groupIds_.find(ranks); it != groupIds_.end()) return reform(it->second);
  if (groupIds_.size() >= kMaxGroups) {
    return absl::ResourceExhaustedError(absl::StrCat("this daemon has made groups for ", kMaxGroups,
                                                     " different lists of ranks: use meshes of the same ranks"));
  }
  return addGroup(ranks, 0);
}

GroupId Executor::addGroup(const std::vector<Rank>& ranks, GroupId insteadOf) {
  const GroupId id = groups_.size() + 1;
  groupIds_[ranks] = id;
  Group group;
  group.ranks = ranks;
  group.topic = groupTopic(id);
  for (const Rank rank : ranks) {
    const absl::Status& gone = workers_[static_cast<std::size_t>(rank)].gone;
    if (!gone.ok()) group.error = gone;
  }
  groups_.push_back(std::move(group));
  v1::WorkerCommand join;
  join.mutable_join_group()->set_group(id);
  join.mutable_join_group()->set_instead_of(insteadOf);
  for (const Rank rank : ranks) sendToWorker(rank, join);
  return id;
}

GroupId Executor::reform(GroupId group) {
  const std::vector<Rank> ranks = at(group).ranks;
  const auto isThere = [this](Rank rank) { return workers_[static_cast<std::size_t>(rank)].gone.ok(); };
  if (at(group).error.ok() || !std::all_of(ranks.begin(), ranks.end(), isThere)) return group;
  const GroupId known = groupIds_.at(ranks);
  return known == group ? addGroup(ranks, group) : known;
}

bool Executor::workerEnded(Rank rank, std::uint64_t incarnation) {
  WorkerLink& link = workers_[static_cast<std::size_t>(rank)];
  if (incarnation < link.incarnation) return false;
  if (incarnation > link.incarnation) link.renew(incarnation);  // it was never heard
  link.ended = true;
  return true;
}

void Executor::restoreRank(Rank rank) { workers_[static_cast<std::size_t>(rank)].gone = absl::OkStatus(); }

bool Executor::hasCredit(const Group& group) const {
  return group.operators < options_.maxOperatorsInFlight && group.bytes < options_.maxBytesInFlight &&
         (group.operators < kAlwaysInFlight || group.time < options_.maxTimeInFlight);
}

bool Executor::usable(GroupId id) const {
  const Group& group = at(id);
  return group.joined.size() == group.ranks.size() && group.error.ok() && hasCredit(group);
}

const absl::Status& Executor::error(GroupId id) const { return at(id).error; }

v1::WorkerCommand* Executor::append(GroupId group) {
  if (open_ != nullptr && (openGroup_ != group || open_->commands_size() >= kFrameCommands ||
                           openCost_.bytes >= kFrameBytes || openCost_.time >= options_.maxTimeInFlight * kFrameTime)) {
    flush();
  }
  if (open_ == nullptr) {
    open_ = google::protobuf::Arena::CreateMessage<v1::Frame>(&arena_);
    open_->set_first_operator(nextOperator_);
    openCost_.firstOperator = nextOperator_;
    openCost_.plans.reserve(kFrameCommands);
    openGroup_ = group;
  }
  return open_->add_commands();
}

v1::WorkerCommand* Executor::appendOperator(GroupId group, PlanId plan, OperatorNumber* number) {
  v1::WorkerCommand* command = append(group);
  command->set_plan(plan);
  *number = nextOperator_++;
  const PlanCosts::Seconds time = costs_.of(plan);
  openCost_.plans.push_back(plan);
  openCost_.time += time;
  ++openCost_.operators;
  at(group).time += time;
  ++at(group).operators;
  return command;
}

v1::WorkerCommand* Executor::appendCommand(GroupId group, std::uint64_t bytes, std::shared_ptr<const void> memory) {
  v1::WorkerCommand* command = append(group);
  openCost_.bytes += bytes + kCommandBytes;
  at(group).bytes += bytes + kCommandBytes;
  if (memory != nullptr) openCost_.memory.push_back(std::move(memory));
  return command;
}

v1::Upload* Executor::appendUpload(GroupId group, std::uint64_t bytes, std::shared_ptr<const void> memory,
                                   OperatorNumber* number) {
  v1::WorkerCommand* command = appendCommand(group, bytes, std::move(memory));
  *number = nextOperator_++;
  return command->mutable_upload();
}

void Executor::discard(GroupId group, const std::vector<OperandId>& operands) {
  if (at(group).error.ok()) {
    appendCommand(group)->mutable_discard()->mutable_operands()->Add(operands.begin(), operands.end());
    return;
  }
  v1::WorkerCommand command;
  command.mutable_discard()->mutable_operands()->Add(operands.begin(), operands.end());
  for (const Rank rank : at(group).ranks) sendToWorker(rank, command);
}

void Executor::endSession(SessionId session) {
  flush();
  v1::WorkerCommand command;
  command.mutable_discard()->set_ended_session(session);
  for (Rank rank = 0; rank < options_.worldSize; ++rank) sendToWorker(rank, command);
}

void Executor::appendFence(GroupId group, std::uint64_t fence) {
  fences_[fence] = {group, at(group).ranks.size()};
  appendCommand(group)->mutable_fence()->set_fence(fence);
}

void Executor::forgetPlans(PlanId below) {
  costs_.forget(below);
  for (GroupId id = 1; id <= groups_.size(); ++id) {
    if (joined(id) && at(id).error.ok()) append(id)->mutable_forget_plans()->set_below(below);
  }
}

bool Executor::holds(GroupId group, Rank rank) const {
  const std::vector<Rank>& ranks = at(group).ranks;
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

OperatorNumber Executor::oldestInFlight(GroupId group) const {
  if (!at(group).inFlight.empty()) return at(group).inFlight.front().firstOperator;
  return open_ != nullptr && openGroup_ == group ? openCost_.firstOperator : nextOperator_;
}

void Executor::flush() {
  if (open_ == nullptr) return;
  Group& group = at(openGroup_);
  if (group.error.ok()) {
    open_->set_sequence(group.nextSequence++);
    publish(group.topic, *open_);
    openCost_.missing.assign(group.ranks.begin(), group.ranks.end());
    openCost_.published = Clock::now();
    group.inFlight.push_back(std::move(openCost_));
  }
  openCost_ = {};
  open_ = nullptr;
  arena_.Reset();
}

void Executor::publish(const std::string& topic, const v1::Frame& frame) {
  zmq::message_t payload(frame.ByteSizeLong());
  frame.SerializeWithCachedSizesToArray(static_cast<std::uint8_t*>(payload.data()));
  uninterrupted([&] { return frames_.send(zmq::buffer(topic), zmq::send_flags::sndmore | zmq::send_flags::dontwait); });
  uninterrupted([&] { return frames_.send(payload, zmq::send_flags::dontwait); });
  ++framesPublished_;
}

void Executor::introduce(const v1::Peers& peers) {
  flush();  // what was appended before still runs among the old ones
  v1::WorkerCommand command;
  *command.mutable_peers() = peers;
  for (Rank rank = 0; rank < options_.worldSize; ++rank) sendToWorker(rank, command);
}

void Executor::sendToWorker(Rank rank, const v1::WorkerCommand& command) {
  if (!workers_[static_cast<std::size_t>(rank)].gone.ok()) return;
  v1::Frame frame;
  frame.set_sequence(workers_[static_cast<std::size_t>(rank)].nextSequence++);
  frame.set_first_operator(nextOperator_);
  *frame.add_commands() = command;
  publish(workerTopic(rank, workers_[static_cast<std::size_t>(rank)].incarnation), frame);
}

void Executor::cancel(const absl::flat_hash_set<GroupId>& groups, SessionId session, OperatorNumber first,
                      OperatorNumber last, absl::Span<const OperatorNumber> only) {
  absl::flat_hash_set<Rank> ranks;
  for (const GroupId group : groups) {
    if (at(group).error.ok()) ranks.insert(at(group).ranks.begin(), at(group).ranks.end());
  }
  if (ranks.empty()) return;
  flush();
  const std::uint64_t id = ++lastCancel_;
  const std::vector<Rank> all(ranks.begin(), ranks.end());
  cancels_[id] = {all, all, {}, Clock::now()};
  v1::WorkerCommand command;
  v1::Cancel* cancel = command.mutable_cancel();
  cancel->set_cancel(id);
  cancel->set_session(session);
  cancel->set_first_operator(first);
  cancel->set_last_operator(last);
  cancel->mutable_only()->Add(only.begin(), only.end());
  for (const Rank rank : all) sendToWorker(rank, command);
}

void Executor::cancelReached(Rank rank, const v1::CancelReached& reached) {
  const auto it = cancels_.find(reached.cancel());
  if (it == cancels_.end()) return;
  PendingCancel& pending = it->second;
  const auto streams = static_cast<std::size_t>(reached.begun_size());
  if (pending.furthest.size() < streams) pending.furthest.resize(streams);
  for (std::size_t s = 0; s < streams; ++s) {
    pending.furthest[s] = std::max(pending.furthest[s], reached.begun(static_cast<int>(s)));
  }
  std::erase(pending.missing, rank);
  if (pending.missing.empty()) decideCancel(it);
}

void Executor::decideCancel(Cancels::iterator cancel) {
  v1::WorkerCommand command;
  command.mutable_cancel_decided()->set_cancel(cancel->first);
  for (const OperatorNumber furthest : cancel->second.furthest)
    command.mutable_cancel_decided()->add_furthest(furthest);
  for (const Rank rank : cancel->second.ranks) sendToWorker(rank, command);
  cancels_.erase(cancel);
}

void Executor::expireCancels() {
  for (auto it = cancels_.begin(); it != cancels_.end();) {
    const auto current = it++;
    if (Clock::now() - current->second.since < kCancelPatience) continue;
    current->second.furthest.assign(kMaxStreams, std::numeric_limits<OperatorNumber>::max());
    decideCancel(current);
  }
}

void Executor::failRank(Rank rank, const absl::Status& why) {
  flush();
  workers_[static_cast<std::size_t>(rank)].gone = why;
  for (Group& group : groups_) {
    if (std::find(group.ranks.begin(), group.ranks.end(), rank) == group.ranks.end()) continue;
    if (group.error.ok()) group.error = why;
    group.inFlight.clear();
    group.operators = 0;
    group.bytes = 0;
    group.time = {};
  }
  for (auto it = fences_.begin(); it != fences_.end();) {
    const auto current = it++;
    if (!at(current->second.group).error.ok()) fences_.erase(current);
  }
  for (auto it = cancels_.begin(); it != cancels_.end();) {
    const auto current = it++;
    if (std::erase(current->second.missing, rank) > 0 && current->second.missing.empty()) decideCancel(current);
  }
}

}  // namespace dtorch
