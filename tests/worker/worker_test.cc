// The life of an operator in one worker: handshake, kernels, tensors, frames.
#include <ATen/ATen.h>

#include <algorithm>
#include <thread>

#include "proto/topics.h"
#include "proto/version.h"
#include "tests/catch.h"
#include "tests/worker/running_workers.h"
#include "worker/reporter.h"

namespace dtorch {
namespace {
const Placement kR = Placement::replicate();
constexpr GroupId kAll = RunningWorkers::kAll;
}  // namespace

TEST_CASE("a worker says hello, joins, and computes what LibTorch computes") {
  const auto transport = GENERATE(WorkerDriver::Transport::kInproc, WorkerDriver::Transport::kIpc);
  RunningWorkers workers(1, transport);
  const at::Tensor a = at::rand({8, 8});
  const at::Tensor b = at::rand({8, 8});
  v1::Plan plan = addPlan(1, workers.mesh());
  workers.send({workers.put(10, a, {kR}), workers.put(11, b, {kR}), define(plan), run(1, {10, 11}, 12)});
  CHECK(at::equal(workers.fetch(0, 12), a + b));
}

TEST_CASE("the hello names protocol, process, device and mailbox") {
  WorkerDriver driver;
  WorkerOptions options;
  options.worldSize = 1;
  options.frameEndpoint = driver.frameEndpoint();
  options.reportEndpoint = driver.reportEndpoint();
  const auto worker = Worker::start(options, &driver.context());
  REQUIRE(worker.ok());
  const v1::WorkerHello hello = driver.await(0, "hello", [](const auto& item) { return item.has_hello(); }).hello();
  CHECK(hello.protocol() == kProtocolVersion);
  CHECK(hello.pid() == getpid());
  CHECK(hello.device() == "cpu");
  CHECK(hello.mailbox().bytes() > 0);
}

TEST_CASE("a worker that cannot be is refused") {
  WorkerDriver driver;
  WorkerOptions options;
  options.frameEndpoint = driver.frameEndpoint();
  options.reportEndpoint = driver.reportEndpoint();
  SECTION("a device of another build") { options.device = "tpu"; }
  SECTION("a rank outside the world") { options.rank = 1; }
  SECTION("an endpoint that is none") { options.frameEndpoint = "nowhere"; }
  CHECK_FALSE(Worker::start(options, &driver.context()).ok());
}

TEST_CASE("a plan is sent once and run often; its first run may come in the same command") {
  RunningWorkers workers(1);
  const at::Tensor one = at::ones({2, 2});
  v1::WorkerCommand first = run(1, {10, 10}, 11);
  *first.mutable_define_plan() = addPlan(1, workers.mesh());
  workers.send({workers.put(10, one, {kR}), first});
  for (OperandId id = 11; id < 30; ++id) workers.send({run(1, {id, 10}, id + 1)});
  CHECK(at::equal(workers.fetch(0, 30), one * 21));
}

TEST_CASE("several outputs get consecutive operands, and views and in-place operators work") {
  RunningWorkers workers(1);
  const at::Tensor x = at::rand({4, 6});
  v1::Plan maximum = makePlan(1, workers.mesh(), 1, "aten::max.dim");
  addKernel(maximum, "aten::max.dim", {TensorArg{0}, 1, false}, 2);
  maximum.add_outputs(1);
  maximum.add_outputs(2);
  v1::Plan transpose = makePlan(2, workers.mesh(), 1, "aten::t");
  addKernel(transpose, "aten::t", {TensorArg{0}});
  transpose.add_outputs(1);
  v1::Plan increment = makePlan(3, workers.mesh(), 1, "aten::add_.Scalar");
  addKernel(increment, "aten::add_.Scalar", {TensorArg{0}, 1, 1}, 1, true);
  increment.add_outputs(1);
  v1::Plan split = makePlan(4, workers.mesh(), 1, "aten::split.Tensor");
  addKernel(split, "aten::split.Tensor", {TensorArg{0}, 2, 0}, 2);
  split.add_outputs(1);
  split.add_outputs(2);
  workers.send({workers.put(10, x, {kR}), define(maximum), define(transpose), define(increment), define(split),
                run(1, {10}, 20), run(2, {10}, 30), run(3, {10}, 40), run(4, {10}, 50)});
  const auto [values, indices] = at::max(x, 1);
  CHECK(at::equal(workers.fetch(0, 20), values));
  CHECK(at::equal(workers.fetch(0, 21), indices));
  CHECK(at::equal(workers.fetch(0, 30), x.t() + 1));  // a view sees what is written later
  CHECK(at::equal(workers.fetch(0, 40), x + 1));
  CHECK(at::equal(workers.fetch(0, 51), (x + 1).slice(0, 2, 4)));
}

TEST_CASE("an operand may be discarded while it is in use") {
  RunningWorkers workers(1);
  const at::Tensor x = at::rand({64, 64});
  std::vector<v1::WorkerCommand> commands{workers.put(1, x, {kR}), define(addPlan(1, workers.mesh()))};
  for (OperandId id = 1; id < 200; ++id) {
    commands.push_back(run(1, {id, id}, id + 1));
    commands.push_back(discard({id}));
  }
  workers.send(commands);
  CHECK(at::equal(workers.fetch(0, 200), x * std::pow(2.0, 199)));
  CHECK_FALSE(workers.fetchError(0, 199).message().empty());
}

TEST_CASE("each frame is credited once") {
  constexpr std::uint64_t kFrames = 51;
  RunningWorkers workers(2);
  workers.send({workers.put(1, at::ones({4}), {kR}), define(addPlan(1, workers.mesh()))});
  for (std::uint64_t i = 1; i < kFrames; ++i) workers.send({run(1, {1, 1}, static_cast<OperandId>(i + 1))});
  const auto isCreditOf = [](const v1::ReportItem& item, std::uint64_t sequence) {
    return item.has_frame_done() && item.frame_done().group() == kAll && item.frame_done().sequence() == sequence;
  };
  for (const Rank rank : {0, 1}) {
    // One stream's reports may overtake the other's.
    for (std::uint64_t sequence = 1; sequence <= kFrames; ++sequence) {
      workers.driver().await(rank, "credit", [&](const v1::ReportItem& item) { return isCreditOf(item, sequence); });
    }
    std::this_thread::sleep_for(10 * ReportBatch::kCreditDelay);
    const std::vector<v1::ReportItem> items = workers.driver().items(rank);
    for (std::uint64_t sequence = 1; sequence <= kFrames; ++sequence) {
      CHECK(std::none_of(items.begin(), items.end(), [&](const auto& item) { return isCreditOf(item, sequence); }));
    }
  }
}

TEST_CASE("ranks outside a plan's mesh ignore its runs") {
  RunningWorkers workers(2);
  const DeviceMesh first = *DeviceMesh::create(DeviceType::kCpu, {1}, {0});
  const at::Tensor x = at::ones({3});
  workers.send({upload(1, first, metaOf(x), {kR}, bytesOf(x)), define(addPlan(1, first)), run(1, {1, 1}, 2)});
  CHECK(at::equal(workers.fetch(0, 2), x * 2));
  CHECK_THAT(workers.fetchError(1, 2).message(), Catch::Contains("operand 2 is not there"));
  workers.driver().drain(kAll, 1);
  for (const v1::ReportItem& item : workers.driver().items(1)) CHECK_FALSE(item.has_failed());
}

TEST_CASE("WIRE-1: a gap in a topic's sequence is a fault, and the worker ends") {
  RunningWorkers workers(1);
  workers.driver().drain(kAll, 0);
  ++workers.driver().sequence(kAll);
  workers.send({});
  const v1::WorkerFault fault = workers.driver().awaitFault(0);
  CHECK_THAT(fault.error().message(), Catch::Contains("went from sequence 1 to 3"));
  CHECK(workers.worker(0).wait().code() == absl::StatusCode::kDataLoss);
  workers.driver().awaitSubscription(workerTopic(0, 0), false);
}

TEST_CASE("what breaks the protocol is a fault, and the worker ends") {
  RunningWorkers workers(1);
  std::string why;
  SECTION("a frame that does not parse") {
    workers.driver().sendRaw(groupTopic(kAll), "\xff\xff\xff");
    why = "does not parse";
  }
  SECTION("a plan that was not defined") {
    workers.send({run(9, {}, 1)});
    why = "plan 9 was not defined";
  }
  SECTION("a command of no kind") {
    workers.send({v1::WorkerCommand()});
    why = "newer protocol";
  }
  SECTION("inputs that are not the plan's") {
    workers.send({define(addPlan(1, workers.mesh())), run(1, {1}, 2)});
    why = "1 inputs; it has 2";
  }
  CHECK_THAT(workers.driver().awaitFault(0).error().message(), Catch::Contains(why));
  CHECK_FALSE(workers.worker(0).wait().ok());
}

TEST_CASE("Shutdown and stop end a worker in order, with work in flight too") {
  RunningWorkers workers(1);
  std::vector<v1::WorkerCommand> commands{workers.put(1, at::rand({256, 256}), {kR}),
                                          define(addPlan(1, workers.mesh()))};
  for (OperandId id = 1; id < 500; ++id) commands.push_back(run(1, {id, id}, id + 1));
  workers.send(commands);
  SECTION("Shutdown") {
    v1::WorkerCommand shutdown;
    shutdown.mutable_shutdown();
    workers.driver().sendTo(0, shutdown);
    CHECK(workers.worker(0).wait().ok());
  }
  SECTION("stop") {
    workers.worker(0).stop(absl::OkStatus());
    CHECK(workers.worker(0).wait().ok());
  }
  SECTION("stop for a reason; the first one counts") {
    workers.worker(0).stop(absl::CancelledError("enough"));
    workers.worker(0).stop(absl::OkStatus());
    CHECK(workers.worker(0).wait().code() == absl::StatusCode::kCancelled);
  }
  SECTION("destruction alone") {}
}

}  // namespace dtorch
