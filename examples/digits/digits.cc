// Trains a small network on handwritten digits, on all workers of a running dtorchd.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "client/cpp/session.h"
#include "examples/digits/digits_data.h"
#include "examples/digits/perceptron.h"

namespace {

int fail(const absl::Status& status) {
  std::fprintf(stderr, "digits: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace dtorch;
  examples::TrainOptions options;
  std::string socket;
  std::string dtype = "float32";
  std::string file = DTORCH_DIGITS_FILE;
  int workers = 0;
  options.lossEvery = 50;
  CLI::App app("Trains a 64-128-10 perceptron on handwritten digits, with the rows spread over dtorchd's workers.");
  app.add_option("--socket", socket, "the daemon's socket; default: $DTORCH_SOCKET, else where dtorchd puts it");
  app.add_option("--steps", options.steps, "steps of gradient descent")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--rate", options.rate, "learning rate")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--dtype", dtype)->check(CLI::IsMember({"float32", "float64"}))->capture_default_str();
  app.add_option("--workers", workers, "use only the first so many workers")->check(CLI::PositiveNumber);
  app.add_option("--data", file, "the table of images")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  options.dtype = *parseDType(dtype);
  options.lossEvery = std::min(options.lossEvery, options.steps);

  const auto data = examples::loadDigits(file);
  if (!data.ok()) return fail(data.status());
  const auto session = Session::connect({.address = socket, .name = "digits"});
  if (!session.ok()) return fail(session.status());
  Mesh mesh = (*session)->mesh();
  if (workers != 0) {
    std::vector<Rank> ranks(static_cast<std::size_t>(workers));
    std::iota(ranks.begin(), ranks.end(), 0);
    const auto some = (*session)->mesh(ranks);
    if (!some.ok()) return fail(some.status());
    mesh = *some;
  }

  const examples::Split split = examples::split(*data);
  std::printf("digits: %lld training and %lld test images, %s, on %lld workers of dtorchd %s\n",
              static_cast<long long>(split.training.size()), static_cast<long long>(split.test.size()), dtype.c_str(),
              static_cast<long long>(mesh.size()), (*session)->daemonVersion().c_str());
  const auto start = std::chrono::steady_clock::now();
  const auto onLoss = [&](int step, double loss) {
    const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
    std::printf("step %4d/%d  loss %.4f  %.2f ms a step\n", step, options.steps, loss, elapsed.count() / step);
    std::fflush(stdout);
  };
  const auto accuracy = examples::train(**session, mesh, split, examples::initialWeights(0), options, onLoss);
  if (!accuracy.ok()) return fail(accuracy.status());
  std::printf("test accuracy %.4f\n", *accuracy);
  return 0;
}
