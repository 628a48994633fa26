#pragma once
#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "daemon/executor/executor.h"
#include "proto/topics.h"
#include "proto/version.h"
#include "tests/catch.h"

namespace dtorch::testing {

/// What an executor has told its listener, as lines of text, and the numbers.
class RecordingListener : public ExecutorListener {
 public:
  std::vector<std::string> events;
  std::uint64_t operatorsDone = 0;
  bool postponesAll = false;

  void onWorkerConnected(Rank rank, const v1::WorkerHello&) override { add("connected", rank); }
  bool postpones(const v1::Status&) override { return postponesAll; }
  void onWorkerDisconnected(Rank rank) override { add("disconnected", rank); }
  void onGroupUsable(GroupId group) override { add("usable", group); }
  void onOperatorFailed(Rank rank, const v1::OperatorFailed&) override { add("failed", rank); }
  void onOutputs(const v1::OperatorOutputs&) override {}
  void onValue(Rank rank, const v1::FetchedValue&) override { add("value", rank); }
  void onFence(std::uint64_t fence) override { add("fence", fence); }
  void onWorkerFault(Rank rank, const absl::Status& why) override {
    add(absl::StrCat("fault ", absl::StatusCodeToString(why.code())), rank);
  }
  void onOperatorsDone(std::uint64_t operators) override { operatorsDone += operators; }

 private:
  template <typename Number>
  void add(absl::string_view what, Number number) {
    events.push_back(absl::StrCat(what, " ", number));
  }
};

/// An executor whose workers are this test: they hear what is published and say what they are told to.
class FakeWorkers {
 public:
  explicit FakeWorkers(int count, std::uint64_t maxOperators = 16384) {
    ExecutorOptions options;
    options.frameEndpoint = "inproc://frames";
    options.reportEndpoint = "inproc://reports";
    options.worldSize = count;
    options.maxOperatorsInFlight = maxOperators;
    auto made = Executor::create(&context_, options, &listener);
    REQUIRE(made.ok());
    executor = *std::move(made);
    for (Rank rank = 0; rank < count; ++rank) {
      Worker& worker = workers_.emplace_back();
      worker.frames = zmq::socket_t(context_, zmq::socket_type::sub);
      worker.frames.set(zmq::sockopt::rcvhwm, 0);
      worker.frames.connect(options.frameEndpoint);
      worker.reports = zmq::socket_t(context_, zmq::socket_type::push);
      worker.reports.set(zmq::sockopt::linger, 0);
      worker.reports.connect(options.reportEndpoint);
    }
  }

  void subscribe(Rank rank, const std::string& topic) { at(rank).frames.set(zmq::sockopt::subscribe, topic); }
  /// Says hello and hears its own topic.
  void greet(Rank rank) {
    subscribe(rank, workerTopic(rank, 0));
    v1::ReportItem item;
    item.mutable_hello()->set_protocol(kProtocolVersion);
    report(rank, std::move(item));
  }
  void join(Rank rank, GroupId group) {
    subscribe(rank, groupTopic(group));
    subscribe(rank, groupMarkerTopic(group, rank));
  }
  void report(Rank rank, v1::ReportItem item) {
    v1::Report report;
    report.set_rank(rank);
    *report.add_items() = std::move(item);
    send(rank, report.SerializeAsString());
  }
  void send(Rank rank, const std::string& bytes) { at(rank).reports.send(zmq::buffer(bytes), zmq::send_flags::none); }
  void frameDone(Rank rank, GroupId group, std::uint64_t sequence) {
    v1::ReportItem item;
    item.mutable_frame_done()->set_group(group);
    item.mutable_frame_done()->set_sequence(sequence);
    report(rank, std::move(item));
  }
  /// A group of these ranks that can be used.
  GroupId group(const std::vector<Rank>& ranks) {
    const GroupId made = *executor->groupOf(ranks);
    for (const Rank rank : ranks) join(rank, made);
    until([&] { return executor->usable(made); });
    return made;
  }

  /// The loop's work, until `done`.
  void until(const std::function<bool()>& done) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    for (;;) {
      executor->handleSubscriptions();
      executor->handleReports();
      if (done()) return;
      if (std::chrono::steady_clock::now() > end) FAIL("nothing came of it");
    }
  }
  void untilEvent(const std::string& event) {
    until([&] { return std::find(listener.events.begin(), listener.events.end(), event) != listener.events.end(); });
  }

  /// The next frame that `rank` hears, and its topic; an empty topic: there is none.
  std::pair<std::string, v1::Frame> next(Rank rank) {
    zmq::message_t topic;
    zmq::message_t payload;
    if (!at(rank).frames.recv(topic, zmq::recv_flags::dontwait)) return {};
    REQUIRE(at(rank).frames.recv(payload, zmq::recv_flags::none).has_value());
    v1::Frame frame;
    REQUIRE(frame.ParseFromArray(payload.data(), static_cast<int>(payload.size())));
    return {topic.to_string(), std::move(frame)};
  }
  /// The next command that `rank` hears on `topic`, frames of one command being expected; past others.
  v1::WorkerCommand nextOn(Rank rank, const std::string& topic) {
    for (;;) {
      auto [heard, frame] = next(rank);
      if (heard.empty()) FAIL("rank " << rank << " hears nothing on " << topic);
      if (heard == topic && frame.commands_size() > 0) return frame.commands(0);
    }
  }

 private:
  struct Worker {
    zmq::socket_t frames;
    zmq::socket_t reports;
  };
  Worker& at(Rank rank) { return workers_[static_cast<std::size_t>(rank)]; }
  zmq::context_t context_;

 public:
  RecordingListener listener;
  std::unique_ptr<Executor> executor;

 private:
  std::vector<Worker> workers_;
};

}  // namespace dtorch::testing
