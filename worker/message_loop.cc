#include "worker/message_loop.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "proto/topics.h"
#include "proto/uninterrupted.h"

namespace dtorch {
namespace {

// Room for a frame of some hundred commands, so that parsing allocates nothing.
constexpr std::size_t kArenaBytes = 256 << 10;

google::protobuf::ArenaOptions arenaIn(std::vector<char>& block) {
  google::protobuf::ArenaOptions options;
  options.initial_block = block.data();
  options.initial_block_size = block.size();
  return options;
}

absl::string_view viewOf(const zmq::message_t& message) {
  return {static_cast<const char*>(message.data()), message.size()};
}

}  // namespace

MessageLoop::MessageLoop(zmq::context_t& context, const std::string& endpoint, Rank rank, std::uint64_t incarnation,
                         Scheduler& scheduler, const StopRequest& stop, Between between)
    : rank_(rank),
      scheduler_(scheduler),
      stop_(stop),
      between_(std::move(between)),
      socket_(context, zmq::socket_type::sub),
      arenaBlock_(kArenaBytes),
      arena_(arenaIn(arenaBlock_)) {
  // No high-water mark: the daemon's credit bounds what is on its way, and a mark would lose frames.
  socket_.set(zmq::sockopt::rcvhwm, 0);
  socket_.set(zmq::sockopt::linger, 0);
  socket_.connect(endpoint);
  topics_[workerTopic(rank, incarnation)] = {};
  socket_.set(zmq::sockopt::subscribe, workerTopic(rank, incarnation));
}

absl::Status MessageLoop::run(std::chrono::milliseconds statisticsInterval) {
  using Clock = std::chrono::steady_clock;
  Clock::time_point nextStatistics = Clock::now();
  std::chrono::milliseconds patience = statisticsInterval;
  zmq::message_t topic;
  zmq::message_t payload;
  try {
    while (!stop_.requested() && !shutDown_) {
      if (const Clock::time_point now = Clock::now(); now >= nextStatistics) {
        tensorBytes_.store(scheduler_.tensorBytes(), std::memory_order_relaxed);
        nextStatistics = now + statisticsInterval;
      }
      if (receive(std::min(statisticsInterval, patience), topic, payload)) {
        if (absl::Status status = handle(topic, payload); !status.ok()) return status;
      }
      patience = between_();
    }
  } catch (const zmq::error_t& error) {
    return absl::UnavailableError(absl::StrCat("receiving frames: ", error.what()));
  }
  return shutDown_ ? absl::OkStatus() : stop_.why();
}

bool MessageLoop::receive(std::chrono::milliseconds timeout, zmq::message_t& topic, zmq::message_t& payload) {
  const auto next = [&] { return socket_.recv(topic, zmq::recv_flags::dontwait); };
  if (!uninterrupted(next)) {
    // One poll: zmq::poll() would ask the socket several times before it sleeps. The descriptor signals by edges, and
    // the socket has just been found empty.
    std::array<pollfd, 2> polled{{{socket_.get(zmq::sockopt::fd), POLLIN, 0}, {stop_.fd(), POLLIN, 0}}};
    poll(polled.data(), polled.size(), static_cast<int>(timeout.count()));
    if (!uninterrupted(next)) return false;
  }
  payload.rebuild();
  // The parts of a message arrive together: nothing blocks here.
  const auto part = [this](zmq::message_t& into) { return uninterrupted([&] { return socket_.recv(into); }); };
  if (topic.more() && !part(payload)) return false;
  for (zmq::message_t surplus; payload.more() && part(surplus) && surplus.more();) {
  }
  return true;
}

absl::Status MessageLoop::handle(const zmq::message_t& topic, const zmq::message_t& payload) {
  const absl::string_view name = viewOf(topic);
  const auto it = topics_.find(name);
  if (it == topics_.end()) {
    return absl::InternalError(absl::StrCat("a frame came on topic \"", absl::CEscape(name), "\", not subscribed"));
  }
  Topic& state = it->second;
  auto* frame = google::protobuf::Arena::CreateMessage<v1::Frame>(&arena_);
  if (!topic.more() || payload.more() || !frame->ParseFromArray(payload.data(), static_cast<int>(payload.size()))) {
    return absl::InternalError(absl::StrCat("a frame of ", payload.size(), " bytes on topic ", std::string(name),
                                            " after sequence ", state.lastSequence, " does not parse"));
  }
  if (frame->sequence() != state.lastSequence + 1) {
    return absl::DataLossError(absl::StrCat("topic ", std::string(name), " went from sequence ", state.lastSequence,
                                            " to ", frame->sequence(), ": frames were lost"));
  }
  state.lastSequence = frame->sequence();
  // Joining a group may move the topics: a copy is what the commands see.
  const absl::Status status = handleCommands(Topic(state), *frame);
  arena_.Reset();
  return status;
}

absl::Status MessageLoop::handleCommands(const Topic& topic, v1::Frame& frame) {
  OperatorNumber number = frame.first_operator();
  for (v1::WorkerCommand& command : *frame.mutable_commands()) {
    if (command.has_shutdown()) {
      shutDown_ = true;
      return absl::OkStatus();
    }
    if (command.has_join_group()) {
      join(command.join_group());
      continue;
    }
    if (absl::Status status = scheduler_.enqueue(command, number); !status.ok()) {
      return absl::InternalError(
          absl::StrCat("frame ", topic.lastSequence, " of group ", topic.group, ": ", status.message()));
    }
    if (command.plan() != 0 || command.has_upload()) ++number;  // WIRE-2
  }
  v1::ReportItem done;
  done.mutable_frame_done()->set_group(topic.group);
  done.mutable_frame_done()->set_sequence(topic.lastSequence);
  scheduler_.reportAfterAll(done);
  return absl::OkStatus();
}

void MessageLoop::join(const v1::JoinGroup& wanted) {
  const GroupId group = wanted.group();
  if (const GroupId lost = wanted.instead_of(); topics_.erase(groupTopic(lost)) > 0) {
    socket_.set(zmq::sockopt::unsubscribe, groupTopic(lost));
    socket_.set(zmq::sockopt::unsubscribe, groupMarkerTopic(lost, rank_));
  }
  if (!topics_.try_emplace(groupTopic(group), Topic{group, 0}).second) return;
  // The marker comes second: when the daemon sees it, it knows that the group's topic is heard.
  socket_.set(zmq::sockopt::subscribe, groupTopic(group));
  socket_.set(zmq::sockopt::subscribe, groupMarkerTopic(group, rank_));
}

}  // namespace dtorch
