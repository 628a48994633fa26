// The example's losses, step by step, against LibTorch with autograd in one process.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>
#include <vector>

#include "client/cpp/session.h"
#include "examples/digits/digits_data.h"
#include "examples/digits/perceptron.h"
#include "tests/catch.h"
#include "tests/process/daemon_fixture.h"

namespace dtorch {
namespace {

using Catch::Matchers::Contains;

const examples::Split& digits() {
  static const examples::Split data = examples::split(*examples::loadDigits(DTORCH_DIGITS_FILE));
  return data;
}

at::Tensor tensorOf(const std::vector<double>& values, at::IntArrayRef sizes, at::ScalarType type) {
  return at::from_blob(const_cast<double*>(values.data()), sizes, at::kDouble).to(type).clone();
}

std::vector<double> referenceLosses(const examples::Weights& weights, const examples::TrainOptions& options) {
  at::set_num_threads(1);  // barriers of more threads than idle processors take milliseconds each
  const at::ScalarType type = options.dtype == DType::kFloat64 ? at::kDouble : at::kFloat;
  const examples::Rows& rows = digits().training;
  const at::Tensor images = tensorOf(rows.images, {rows.size(), 64}, type);
  const at::Tensor labels =
      at::from_blob(const_cast<std::int64_t*>(rows.labels.data()), {rows.size()}, at::kLong).clone();
  std::vector<at::Tensor> parameters{tensorOf(weights.w1, {64, 128}, type), tensorOf(weights.b1, {128}, type),
                                     tensorOf(weights.w2, {128, 10}, type), tensorOf(weights.b2, {10}, type)};
  std::vector<double> losses;
  for (int step = 0; step < options.steps; ++step) {
    for (at::Tensor& parameter : parameters) parameter = parameter.detach().requires_grad_();
    const at::Tensor hidden = at::relu(at::addmm(parameters[1], images, parameters[0]));
    const at::Tensor loss = at::cross_entropy_loss(at::addmm(parameters[3], hidden, parameters[2]), labels);
    loss.backward();
    losses.push_back(loss.item<double>());
    for (at::Tensor& parameter : parameters) parameter = parameter.detach() - options.rate * parameter.grad();
  }
  return losses;
}

TEST_CASE("The split is 1,438 training and 359 test rows") {
  CHECK(digits().training.size() == 1438);
  CHECK(digits().test.size() == 359);
}

TEST_CASE("Losses are those of one process, whatever the workers") {
  const auto [workers, threads] = GENERATE(table<int, bool>({{1, false}, {2, false}, {3, false}, {3, true}}));
  CAPTURE(workers, threads);
  DaemonFixture::Options daemonOptions;
  daemonOptions.workers = workers;
  daemonOptions.threads = threads;
  DaemonFixture daemon(daemonOptions);
  const auto session = daemon.connect();
  const examples::Weights weights = examples::initialWeights(0);
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    examples::TrainOptions options;
    options.steps = 50;
    options.dtype = dtype;
    std::vector<double> losses;
    const auto accuracy = examples::train(*session, session->mesh(), digits(), weights, options,
                                          [&](int /*step*/, double loss) { losses.push_back(loss); });
    INFO(accuracy.status().message());
    REQUIRE(accuracy.ok());
    const std::vector<double> expected = referenceLosses(weights, options);
    REQUIRE(losses.size() == expected.size());
    const double tolerance = dtype == DType::kFloat64 ? 1e-10 : 1e-5;
    for (std::size_t step = 0; step < losses.size(); ++step) {
      CAPTURE(std::string(name(dtype)), step, losses[step], expected[step]);
      CHECK(std::abs(losses[step] - expected[step]) <= tolerance * expected[step]);
    }
  }
}

TEST_CASE("The example reaches 0.95 on rows that it has not seen") {
  DaemonFixture daemon;
  const auto session = daemon.connect();
  const auto accuracy = examples::train(*session, session->mesh(), digits(), examples::initialWeights(0), {},
                                        [](int /*step*/, double /*loss*/) {});
  INFO(accuracy.status().message());
  REQUIRE(accuracy.ok());
  CHECK(*accuracy >= 0.95);
}

TEST_CASE("The program prints losses and accuracy, on all workers and on some") {
  DaemonFixture daemon;
  const ProgramResult all =
      runProgram({binFolder() + "/digits", "--socket", daemon.socket()}, std::chrono::seconds(60));
  CHECK(all.exitCode == 0);
  CHECK_THAT(all.output,
             Contains("on 2 workers") && Contains("step  500/500  loss 0.0") && Contains("test accuracy 0.9"));
  const ProgramResult one = runProgram(
      {binFolder() + "/digits", "--socket", daemon.socket(), "--workers", "1", "--steps", "2", "--dtype", "float64"},
      std::chrono::seconds(60));
  CHECK(one.exitCode == 0);
  CHECK_THAT(one.output, Contains("float64, on 1 workers") && Contains("test accuracy"));
  const ProgramResult bad =
      runProgram({binFolder() + "/digits", "--socket", daemon.socket(), "--workers", "5"}, std::chrono::seconds(60));
  CHECK(bad.exitCode == 1);
  CHECK_THAT(bad.output, Contains("rank 2 does not exist: there are 2 workers"));
}

}  // namespace
}  // namespace dtorch
