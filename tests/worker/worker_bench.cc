// Microseconds an operator of one worker alone, driven without a daemon: 8x8 adds, a chain and its discards.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/worker/worker_driver.h"
#include "worker/worker.h"

namespace {

using namespace dtorch;  // NOLINT(google-build-using-namespace): a program of one file
constexpr GroupId kGroup = 1;
constexpr int kFrames = 200;
constexpr int kRounds = 7;

double microsecondsAnOperator(WorkerDriver& driver, PlanId plan, int operatorsAFrame) {
  std::vector<v1::WorkerCommand> frame;
  for (int i = 0; i < operatorsAFrame; ++i) {
    const auto output = static_cast<OperandId>(1000 + i);
    frame.push_back(run(plan, {1, 1}, output));
    frame.push_back(discard({output}));
  }
  driver.drain(kGroup, 0);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kFrames; ++i) driver.send(kGroup, frame);
  driver.drain(kGroup, 0);
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
  driver.items(0);
  return took.count() / kFrames / operatorsAFrame;
}

void measure(WorkerDriver& driver, const std::string& what, PlanId plan, int operatorsAFrame) {
  std::vector<double> times;
  for (int round = 0; round < kRounds; ++round) times.push_back(microsecondsAnOperator(driver, plan, operatorsAFrame));
  std::sort(times.begin(), times.end());
  std::printf("%-28s %4d operators a frame: median %.3f us, %.3f to %.3f\n", what.c_str(), operatorsAFrame,
              times[kRounds / 2], times.front(), times.back());
}

}  // namespace

int main() {
  WorkerDriver driver;
  WorkerOptions options;
  options.frameEndpoint = driver.frameEndpoint();
  options.reportEndpoint = driver.reportEndpoint();
  const auto worker = Worker::start(options, &driver.context());
  if (!worker.ok()) return 1;
  driver.awaitWorkers({0});
  driver.join(kGroup, {0});
  const DeviceMesh mesh = cpuMesh({1});
  v1::Plan add = makePlan(1, mesh, 2, "aten::add.Tensor");
  addKernel(add, "aten::add.Tensor", {TensorArg{0}, TensorArg{1}, 1});
  addOutput(add, 2, *makeMeta(DType::kFloat32, {8, 8}), {Placement::replicate()});
  v1::Plan nothing = makePlan(2, mesh, 2, "nothing");
  nothing.add_outputs(0);
  driver.send(kGroup, {define(add), define(nothing),
                       upload(1, mesh, *makeMeta(DType::kFloat32, {8, 8}), {Placement::replicate()}, std::string(256, '\0'))});
  for (const int operators : {1, 16, 256}) {
    measure(driver, "aten::add.Tensor 8x8", 1, operators);
    measure(driver, "a plan without steps", 2, operators);
  }
}
