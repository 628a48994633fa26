// Tensors of 64 MiB from a client of the daemon's host to the workers and back. The daemon's socket is the argument.
// Prints medians, and the 10th and 90th percentile.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "client/cpp/session.h"

namespace dtorch {
namespace {

constexpr std::int64_t kFloats = 16 << 20;
constexpr int kRounds = 21;
using Clock = std::chrono::steady_clock;

void check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

class Times {
 public:
  template <typename Call>
  void measure(const Call& call) {
    const Clock::time_point start = Clock::now();
    call();
    micros_.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  double at(double part) {
    std::sort(micros_.begin(), micros_.end());
    return micros_[static_cast<std::size_t>(part * static_cast<double>(micros_.size() - 1))];
  }
  void print(const char* what, double base) {
    std::printf("%-58s %9.1f (%.0f..%.0f)  %.2fx memcpy\n", what, at(0.5), at(0.1), at(0.9), at(0.5) / base);
  }

 private:
  std::vector<double> micros_;
};

int run(const char* socket) {
  auto session = Session::connect({.address = socket});
  check(session.status());
  const std::vector<float> values(kFloats, 1);
  std::vector<float> target(kFloats, 2);
  const auto put = [&](Placement placement) {
    return (*session)->put(HostView::of(values, {kFloats}), (*session)->mesh(), {placement});
  };
  Times memcpyTimes;
  Times firstPut;
  Times puts;
  Times putsDone;
  Times firstGet;
  Times gets;
  Times getsOfShards;
  for (int i = 0; i < kRounds; ++i) {
    memcpyTimes.measure([&] { std::memcpy(target.data(), values.data(), values.size() * sizeof(float)); });
  }
  // Put when the workers have read the one before, as a program does that works between.
  for (int i = 0; i < kRounds; ++i) {
    Tensor tensor;
    (i == 0 ? firstPut : puts).measure([&] { tensor = put(Placement::shard(0)); });
    check((*session)->synchronize().get());
    Times& done = putsDone;
    done.measure([&] {
      tensor = put(Placement::shard(0));
      check((*session)->synchronize().get());
    });
  }
  const auto get = [](const Tensor& tensor) { check(tensor.get().get().status()); };
  const Tensor whole = put(Placement::replicate());
  const Tensor parts = put(Placement::shard(0));
  check((*session)->synchronize().get());
  for (int i = 0; i < kRounds; ++i) (i == 0 ? firstGet : gets).measure([&] { get(whole); });
  for (int i = 0; i < kRounds; ++i) getsOfShards.measure([&] { get(parts); });
  const double base = memcpyTimes.at(0.5);
  memcpyTimes.print("memcpy", base);
  firstPut.print("put, the first of its size", base);
  puts.print("put", base);
  putsDone.print("put and the wait until the workers have it", base);
  firstGet.print("get, the first of its size", base);
  gets.print("get", base);
  getsOfShards.print("get of a tensor in two shards", base);
  return 0;
}

}  // namespace
}  // namespace dtorch

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  return dtorch::run(argv[1]);
}
