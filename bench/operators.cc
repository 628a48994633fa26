// One repetition of a measurement of small operators on a running dtorchd, printed as one line of JSON: bench/run's
// tool.
#include "client/cpp/operators.h"

#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/cpp/session.h"

namespace {

using namespace dtorch;
using Clock = std::chrono::steady_clock;

constexpr auto kTimeout = std::chrono::minutes(10);

double microseconds(Clock::duration time) { return std::chrono::duration<double, std::micro>(time).count(); }

// RUSAGE_SELF: of the process; RUSAGE_THREAD: of the calling thread.
double cpuMicroseconds(int who) {
  rusage usage{};
  ::getrusage(who, &usage);
  const auto of = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_usec);
  };
  return of(usage.ru_utime) + of(usage.ru_stime);
}

Tensor small(Session& session, Placement placement) {
  const std::vector<float> values(64, 1);
  return session.put(HostView::of(values, {8, 8}), session.mesh(), {placement});
}

absl::Status addMany(Session& session, const Tensor& x, int count) {
  Tensor y = x;
  for (int i = 0; i < count; ++i) y = add(y, x);
  return session.synchronize().wait(kTimeout);
}

/// Operators that nothing waits for, to the end of the last one on all workers.
absl::StatusOr<nlohmann::json> pipelined(Session& session, int count) {
  const Tensor x = small(session, Placement::shard(0));
  if (absl::Status status = addMany(session, x, std::min(count, 2000)); !status.ok()) return status;
  const double cpu = cpuMicroseconds(RUSAGE_SELF);
  const double encode = cpuMicroseconds(RUSAGE_THREAD);
  const Clock::time_point start = Clock::now();
  if (absl::Status status = addMany(session, x, count); !status.ok()) return status;
  return nlohmann::json{{"us", microseconds(Clock::now() - start) / count},
                        {"client_cpu_us", (cpuMicroseconds(RUSAGE_SELF) - cpu) / count},
                        {"encode_us", (cpuMicroseconds(RUSAGE_THREAD) - encode) / count}};
}

/// One operator and the wait for its value: the median of `count`.
absl::StatusOr<nlohmann::json> submitAndGet(Session& session, Placement placement, int count) {
  const Tensor x = small(session, placement);
  std::vector<double> times;
  for (int i = 0; i < count + 100; ++i) {
    const Clock::time_point start = Clock::now();
    const absl::StatusOr<HostTensor> value = add(x, x).get().wait(kTimeout);
    if (!value.ok()) return value.status();
    if (i >= 100) times.push_back(microseconds(Clock::now() - start));
  }
  std::sort(times.begin(), times.end());
  return nlohmann::json{{"us", times[times.size() / 2]}, {"p90_us", times[times.size() * 9 / 10]}};
}

}  // namespace

int main(int argc, char** argv) {
  std::string socket;
  std::string what;
  int count = 0;
  CLI::App app("Measures small operators on a running dtorchd.");
  app.add_option("--socket", socket)->required();
  app.add_option("what", what)->check(CLI::IsMember({"pipelined", "get", "gather"}))->required();
  app.add_option("count", count)->check(CLI::PositiveNumber)->required();
  CLI11_PARSE(app, argc, argv);
  const auto session = Session::connect({.address = socket, .name = "bench"});
  const auto result = !session.ok()         ? absl::StatusOr<nlohmann::json>(session.status())
                      : what == "pipelined" ? pipelined(**session, count)
                      : what == "get"       ? submitAndGet(**session, Placement::replicate(), count)
                                            : submitAndGet(**session, Placement::shard(0), count);
  if (!result.ok()) {
    std::fprintf(stderr, "bench_operators: %s\n", std::string(result.status().message()).c_str());
    return 1;
  }
  std::puts(result->dump().c_str());
  return 0;
}
