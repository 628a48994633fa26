// Ranges and marks of sessions, in the log and in LibTorch's CUDA profiler.
#include "worker/worker_host.h"

#include <spdlog/sinks/ostream_sink.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <sstream>
#include <string>
#include <vector>

#include "tests/catch.h"

namespace dtorch {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::Matches;

struct Fixture {
  Fixture() {
    auto logger = std::make_shared<spdlog::logger>("w", std::make_shared<spdlog::sinks::ostream_sink_mt>(lines));
    logger->set_pattern("%v");
    logger->set_level(spdlog::level::debug);
    host = std::make_unique<WorkerHost>(std::move(logger));
    host->enter(1);
  }
  std::ostringstream lines;
  std::unique_ptr<WorkerHost> host;
};

// What NVTX would be told.
struct FakeProfiler : torch::profiler::impl::ProfilerStubs {
  void record(c10::DeviceIndex*, torch::profiler::impl::ProfilerVoidEventStub*, std::int64_t*) const override {}
  float elapsed(const torch::profiler::impl::ProfilerVoidEventStub*,
                const torch::profiler::impl::ProfilerVoidEventStub*) const override {
    return 0;
  }
  void mark(const char* name) const override { calls.push_back(std::string("mark ") + name); }
  void rangePush(const char* name) const override { calls.push_back(std::string("push ") + name); }
  void rangePop() const override { calls.emplace_back("pop"); }
  bool enabled() const override { return on; }
  void onEachDevice(std::function<void(int)>) const override {}
  void synchronize() const override {}
  bool on = true;
  mutable std::vector<std::string> calls;
};

}  // namespace

TEST_CASE("ranges nest, and their ends say how long they took") {
  Fixture f;
  CHECK(f.host->pushRange("step"));
  CHECK(f.host->pushRange("forward"));
  f.host->mark("loss");
  CHECK(f.host->popRange());
  CHECK(f.host->popRange());
  CHECK_FALSE(f.host->popRange());
  CHECK_THAT(f.lines.str(),
             Matches("session 1: range step begins\nsession 1: range step/forward begins\nsession 1: mark loss\n"
                     "session 1: range step/forward took [0-9]+\\.[0-9]{3} ms\n"
                     "session 1: range step took [0-9]+\\.[0-9]{3} ms\n"));
}

TEST_CASE("sessions have ranges of their own, which end with them") {
  Fixture f;
  CHECK(f.host->pushRange("a"));
  f.host->enter(2);
  CHECK_FALSE(f.host->popRange());
  CHECK(f.host->pushRange("b"));
  CHECK_THAT(f.lines.str(), Contains("session 2: range b begins"));
  f.host->drop(1);
  f.host->enter(1);
  CHECK_FALSE(f.host->popRange());
}

TEST_CASE("open ranges are bounded, and names cannot garble the log") {
  Fixture f;
  std::string name(1000, 'x');
  name.push_back('\n');
  int open = 0;
  while (open < 5000 && f.host->pushRange(name)) ++open;
  CHECK(open == 1024);
  CHECK(f.lines.str().find("x\n\n") == std::string::npos);
  CHECK(f.lines.str().size() < 1024 * 400);
}

TEST_CASE("LibTorch's CUDA profiler is told, where there is one") {
  auto* none = const_cast<torch::profiler::impl::ProfilerStubs*>(torch::profiler::impl::cudaStubs());
  FakeProfiler profiler;
  torch::profiler::impl::registerCUDAMethods(&profiler);
  Fixture f;
  f.host->pushRange("step");
  f.host->mark("here");
  f.host->popRange();
  f.host->pushRange("left open");
  f.host->drop(1);
  CHECK(profiler.calls == std::vector<std::string>{"push step", "mark here", "pop", "push left open", "pop"});
  profiler.on = false;
  f.host->pushRange("unheard");
  CHECK(profiler.calls.size() == 5);
  torch::profiler::impl::registerCUDAMethods(none);
}

}  // namespace dtorch
