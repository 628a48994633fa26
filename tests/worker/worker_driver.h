#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "core/device_mesh.h"
#include "core/ids.h"
#include "core/placement.h"
#include "core/tensor_meta.h"
#include "core/value.h"
#include "dtorch/v1/worker.pb.h"

namespace dtorch {

/// The daemon's side of workers under test: publishes frames and takes reports. What does not come in time is an
/// exception that says what was awaited.
class WorkerDriver {
 public:
  enum class Transport { kInproc, kIpc };
  explicit WorkerDriver(Transport transport = Transport::kInproc);
  ~WorkerDriver();

  zmq::context_t& context() { return context_; }
  const std::string& frameEndpoint() const { return frames_; }
  const std::string& reportEndpoint() const { return reports_; }

  /// Waits for the hello of each of `ranks` and its own topic's subscription.
  void awaitWorkers(const std::vector<Rank>& ranks);
  /// Tells `ranks` of each other and waits until all have joined `group`.
  void join(GroupId group, const std::vector<Rank>& ranks);

  /// Publishes a frame of `commands` and returns the number of its first run; 0: it has none.
  OperatorNumber send(GroupId group, const std::vector<v1::WorkerCommand>& commands);
  void sendTo(Rank rank, const v1::WorkerCommand& command);
  /// Publishes `payload` as it is.
  void sendRaw(const std::string& topic, const std::string& payload);
  /// The sequence of the last frame of `group`; setting it makes a gap.
  std::uint64_t& sequence(GroupId group) { return sequences_[group]; }

  /// The first report item of `rank` that `wanted` accepts, out of those that have come and will come.
  v1::ReportItem await(Rank rank, const std::string& what, const std::function<bool(const v1::ReportItem&)>& wanted);
  v1::FetchedValue fetch(GroupId group, Rank rank, OperandId operand);
  v1::OperatorFailed awaitFailure(Rank rank, OperatorNumber number);
  v1::WorkerFault awaitFault(Rank rank);
  /// Waits until `rank` has run all that was sent to `group` so far.
  void drain(GroupId group, Rank rank);
  /// Takes what has come; the items of `rank` that nobody awaited yet.
  std::vector<v1::ReportItem> items(Rank rank);
  void awaitSubscription(const std::string& topic, bool present = true);

 private:
  void receive(std::chrono::steady_clock::time_point deadline, const std::string& what);
  void takeAvailable();

  std::string folder_;  // of ipc sockets
  std::string frames_;
  std::string reports_;
  zmq::context_t context_;
  zmq::socket_t publisher_;
  zmq::socket_t puller_;
  std::set<std::string> subscriptions_;
  std::vector<std::pair<Rank, v1::ReportItem>> inbox_;
  std::map<Rank, v1::WorkerHello> hellos_;
  std::map<GroupId, std::uint64_t> sequences_;
  std::map<Rank, std::uint64_t> ownSequences_;
  OperatorNumber nextOperator_ = 1;
  std::uint64_t nextId_ = 1;  // of futures, fences and epochs
};

// Commands in one line each.
DeviceMesh cpuMesh(std::vector<std::int64_t> shape);
v1::Plan makePlan(PlanId id, const DeviceMesh& mesh, std::uint32_t inputs, const std::string& name);
void addKernel(v1::Plan& plan, const std::string& op, const std::vector<Value>& arguments, std::uint32_t outputs = 1,
               bool mutates = false);
void addConvert(v1::Plan& plan, std::uint32_t input, const std::vector<std::int64_t>& shape, const Placements& from,
                const Placements& to);
/// `meta` is global.
void addOutput(v1::Plan& plan, std::uint32_t slot, const TensorMeta& meta, const Placements& placements);
v1::WorkerCommand define(const v1::Plan& plan);
v1::WorkerCommand run(PlanId plan, const std::vector<OperandId>& inputs, OperandId firstOutput);
v1::WorkerCommand discard(const std::vector<OperandId>& operands);
v1::WorkerCommand upload(OperandId operand, const DeviceMesh& mesh, const TensorMeta& meta,
                         const Placements& placements, const std::string& bytes);

}  // namespace dtorch
