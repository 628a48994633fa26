// Microseconds an operator of one worker alone, driven without a daemon: 8x8 adds and the discards of their results.
// The processor time of its two busy threads hardly depends on what else the machine does, nor on the driver.
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "dispatch/prepared_call.h"
#include "tests/worker/worker_driver.h"
#include "worker/worker.h"

namespace {

using namespace dtorch;  // NOLINT(google-build-using-namespace): a program of one file
constexpr GroupId kGroup = 1;
constexpr int kFrames = 200;
constexpr int kRounds = 7;

// Microseconds an operator: by the clock, on the message loop's thread, on the compute stream's.
using Times = std::array<double, 3>;

// What the thread of that name has used, in microseconds.
double processorTime(const std::string& thread) {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name != thread) continue;
    double nanoseconds = 0;
    std::ifstream(task.path() / "schedstat") >> nanoseconds;
    return nanoseconds * 1e-3;
  }
  std::fprintf(stderr, "no thread %s\n", thread.c_str());
  std::abort();
}

Times now() {
  const std::chrono::duration<double, std::micro> clock = std::chrono::steady_clock::now().time_since_epoch();
  return {clock.count(), processorTime("w0.loop"), processorTime("w0.compute")};
}

Times between(const Times& begin, const Times& end, double operators) {
  Times times;
  for (std::size_t i = 0; i < times.size(); ++i) times[i] = (end[i] - begin[i]) / operators;
  return times;
}

Times runFrames(WorkerDriver& driver, PlanId plan, int operatorsAFrame) {
  std::vector<v1::WorkerCommand> frame;
  for (int i = 0; i < operatorsAFrame; ++i) {
    const auto output = static_cast<OperandId>(1000 + i);
    frame.push_back(run(plan, {1, 1}, output));
    frame.push_back(discard({output}));
  }
  driver.drain(kGroup, 0);
  const Times begin = now();
  for (int i = 0; i < kFrames; ++i) driver.send(kGroup, frame);
  driver.drain(kGroup, 0);
  const Times end = now();
  driver.items(0);
  return between(begin, end, kFrames * operatorsAFrame);
}

// The kernel itself, called in a loop as the worker calls it: what no worker can beat.
Times bareKernel() {
  const c10::InferenceMode noAutograd;
  const PreparedCall call =
      *PreparedCall::create(*findOperator("aten::add.Tensor"), {TensorArg{0}, TensorArg{1}, 1}, at::kCPU);
  const std::vector<at::Tensor> inputs(2, at::zeros({8, 8}));
  std::vector<at::Tensor> outputs;
  timespec begin{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
  constexpr int kCalls = 50000;
  for (int i = 0; i < kCalls; ++i) {
    outputs.clear();
    if (!call.run(inputs, &outputs).ok()) std::abort();
  }
  timespec end{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
  const double took =
      static_cast<double>(end.tv_sec - begin.tv_sec) * 1e6 + static_cast<double>(end.tv_nsec - begin.tv_nsec) * 1e-3;
  return {took / kCalls, 0, took / kCalls};
}

void measure(const std::string& what, const std::function<Times()>& once) {
  std::printf("%-34s", what.c_str());
  std::vector<Times> rounds;
  for (int round = 0; round < kRounds; ++round) rounds.push_back(once());
  constexpr std::array<const char*, 3> kNames{"elapsed", "loop", "compute"};
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    std::sort(rounds.begin(), rounds.end(), [i](const Times& a, const Times& b) { return a[i] < b[i]; });
    std::printf("  %s %.3f (%.3f to %.3f)", kNames[i], rounds[kRounds / 2][i], rounds.front()[i], rounds.back()[i]);
  }
  std::printf("\n");
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
  const TensorMeta meta = *makeMeta(DType::kFloat32, {8, 8});
  v1::Plan add = makePlan(1, mesh, 2, "aten::add.Tensor");
  addKernel(add, "aten::add.Tensor", {TensorArg{0}, TensorArg{1}, 1});
  addOutput(add, 2, meta, {Placement::replicate()});
  v1::Plan nothing = makePlan(2, mesh, 2, "nothing");
  nothing.add_outputs(0);
  const std::string zeros(static_cast<std::size_t>(meta.bytes()), '\0');
  driver.send(kGroup, {define(add), define(nothing), upload(1, mesh, meta, {Placement::replicate()}, zeros)});
  std::printf("microseconds an operator: median (least to most) of %d rounds\n", kRounds);
  measure("add 8x8, bare", bareKernel);
  for (const int operators : {1, 16, 256}) {
    const std::string frames = ", " + std::to_string(operators) + " a frame";
    measure("add 8x8" + frames, [&] { return runFrames(driver, 1, operators); });
    measure("no steps" + frames, [&] { return runFrames(driver, 2, operators); });
  }
}
