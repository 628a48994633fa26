// Microseconds an operator of one worker alone, driven without a daemon: 8x8 adds and the discards of their results.
// Processor time counts all threads, the driver's too; it hardly depends on what else the machine does.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <string>
#include <vector>

#include "tests/worker/worker_driver.h"
#include "worker/worker.h"

namespace {

using namespace dtorch;  // NOLINT(google-build-using-namespace): a program of one file
constexpr GroupId kGroup = 1;
constexpr int kFrames = 200;
constexpr int kRounds = 7;

struct Times {
  double wall = 0;
  double processor = 0;
};

double processorMicroseconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

Times microsecondsAnOperator(WorkerDriver& driver, PlanId plan, int operatorsAFrame) {
  std::vector<v1::WorkerCommand> frame;
  for (int i = 0; i < operatorsAFrame; ++i) {
    const auto output = static_cast<OperandId>(1000 + i);
    frame.push_back(run(plan, {1, 1}, output));
    frame.push_back(discard({output}));
  }
  driver.drain(kGroup, 0);
  const auto begin = std::chrono::steady_clock::now();
  const double processorBegin = processorMicroseconds();
  for (int i = 0; i < kFrames; ++i) driver.send(kGroup, frame);
  driver.drain(kGroup, 0);
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
  const double processor = processorMicroseconds() - processorBegin;
  driver.items(0);
  const double operators = kFrames * operatorsAFrame;
  return {took.count() / operators, processor / operators};
}

void measure(WorkerDriver& driver, const std::string& what, PlanId plan, int operatorsAFrame) {
  std::vector<double> wall;
  std::vector<double> processor;
  for (int round = 0; round < kRounds; ++round) {
    const Times times = microsecondsAnOperator(driver, plan, operatorsAFrame);
    wall.push_back(times.wall);
    processor.push_back(times.processor);
  }
  std::sort(wall.begin(), wall.end());
  std::sort(processor.begin(), processor.end());
  std::printf("%-22s %4d operators a frame: %.3f us (%.3f to %.3f), processor %.3f us (%.3f to %.3f)\n", what.c_str(),
              operatorsAFrame, wall[kRounds / 2], wall.front(), wall.back(), processor[kRounds / 2], processor.front(),
              processor.back());
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
  driver.send(kGroup,
              {define(add), define(nothing),
               upload(1, mesh, *makeMeta(DType::kFloat32, {8, 8}), {Placement::replicate()}, std::string(256, '\0'))});
  for (const int operators : {1, 16, 256}) {
    measure(driver, "aten::add.Tensor 8x8", 1, operators);
    measure(driver, "a plan without steps", 2, operators);
  }
}
