#include "examples/digits/perceptron.h"

#include <cmath>
#include <random>
#include <utility>

#include "client/cpp/operators.h"

namespace dtorch::examples {
namespace {

const Placements kReplicated{Placement::replicate()};
const Placements kByRow{Placement::shard(0)};

/// Puts doubles as `dtype`, float32 or float64.
class Uploader {
 public:
  Uploader(Session& session, Mesh mesh, DType dtype) : session_(session), mesh_(std::move(mesh)), dtype_(dtype) {}
  Tensor put(const std::vector<double>& values, const Sizes& sizes, const Placements& placements) const {
    if (dtype_ == DType::kFloat64) return session_.put(HostView::of(values, sizes), mesh_, placements);
    const std::vector<float> narrow(values.begin(), values.end());
    return session_.put(HostView::of(narrow, sizes), mesh_, placements);
  }

 private:
  Session& session_;
  Mesh mesh_;
  DType dtype_;
};

/// x @ w1 + b1, relu, @ w2 + b2.
class Perceptron {
 public:
  Perceptron(const Uploader& uploader, const Weights& weights)
      : w1_(uploader.put(weights.w1, {DigitsData::kPixels, kHidden}, kReplicated)),
        b1_(uploader.put(weights.b1, {kHidden}, kReplicated)),
        w2_(uploader.put(weights.w2, {kHidden, kClasses}, kReplicated)),
        b2_(uploader.put(weights.b2, {kClasses}, kReplicated)) {}

  /// One step down the gradient; the loss before it.
  Tensor step(const Tensor& images, const Tensor& targets, std::int64_t rows, double rate) {
    const auto count = static_cast<double>(rows);
    const Tensor sums = addmm(b1_, images, w1_);
    const Tensor hidden = relu(sums);
    const Tensor logProbabilities = logSoftmax(addmm(b2_, hidden, w2_), 1);
    const Tensor loss = neg(div(sum(mul(logProbabilities, targets)).redistribute(kReplicated), count));

    const Tensor output = div(sub(exp(logProbabilities), targets), count);  // the loss's gradient there
    const Tensor inner = mul(mm(output, transpose(w2_, 0, 1)), gt(sums, 0));
    const Tensor toW2 = mm(transpose(hidden, 0, 1), output);
    const Tensor toW1 = mm(transpose(images, 0, 1), inner);
    descend(w2_, toW2, rate);
    descend(b2_, sum(output, {0}), rate);
    descend(w1_, toW1, rate);
    descend(b1_, sum(inner, {0}), rate);
    return loss;
  }

  Tensor classify(const Tensor& images) const { return argmax(addmm(b2_, relu(addmm(b1_, images, w1_)), w2_), 1); }

 private:
  static void descend(Tensor& weights, const Tensor& gradient, double rate) {
    weights = sub(weights, mul(gradient.redistribute(kReplicated), rate));
  }
  Tensor w1_, b1_, w2_, b2_;
};

}  // namespace

Split split(const DigitsData& data) {
  Split result;
  for (std::int64_t row = 0; row < data.rows(); ++row) {
    Rows& rows = row % 5 == 4 ? result.test : result.training;
    const auto pixels = data.pixels.begin() + row * DigitsData::kPixels;
    const std::int64_t label = data.labels[static_cast<std::size_t>(row)];
    rows.images.insert(rows.images.end(), pixels, pixels + DigitsData::kPixels);
    for (std::int64_t c = 0; c < kClasses; ++c) rows.targets.push_back(c == label ? 1 : 0);
    rows.labels.push_back(label);
  }
  return result;
}

Weights initialWeights(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto draw = [&random](std::int64_t count, std::int64_t in) {
    const double bound = 1 / std::sqrt(static_cast<double>(in));
    std::vector<double> values(static_cast<std::size_t>(count));
    for (double& value : values) value = bound * (2 * std::ldexp(static_cast<double>(random() >> 11), -53) - 1);
    return values;
  };
  Weights weights;
  weights.w1 = draw(DigitsData::kPixels * kHidden, DigitsData::kPixels);
  weights.b1 = draw(kHidden, DigitsData::kPixels);
  weights.w2 = draw(kHidden * kClasses, kHidden);
  weights.b2 = draw(kClasses, kHidden);
  return weights;
}

absl::StatusOr<double> train(Session& session, const Mesh& mesh, const Split& data, const Weights& weights,
                             const TrainOptions& options, const std::function<void(int step, double loss)>& onLoss) {
  const Uploader uploader(session, mesh, options.dtype);
  const Rows& training = data.training;
  const Tensor images = uploader.put(training.images, {training.size(), DigitsData::kPixels}, kByRow);
  const Tensor targets = uploader.put(training.targets, {training.size(), kClasses}, kByRow);
  Perceptron model(uploader, weights);

  for (int step = 1; step <= options.steps; ++step) {
    const Tensor loss = model.step(images, targets, training.size(), options.rate);
    if (step % options.lossEvery != 0) continue;
    // The only wait: until here the client has only described the work of the last steps.
    const absl::StatusOr<HostTensor> value = loss.get().get();
    if (!value.ok()) return value.status();
    const absl::StatusOr<double> number = value->item();
    if (!number.ok()) return number.status();
    onLoss(step, *number);
  }

  const Rows& test = data.test;
  const Tensor testImages = uploader.put(test.images, {test.size(), DigitsData::kPixels}, kByRow);
  const Tensor labels = session.put(HostView::of(test.labels, {test.size()}), mesh, kByRow);
  const Tensor right = sum(eq(model.classify(testImages), labels)).redistribute(kReplicated);
  const absl::StatusOr<HostTensor> value = right.get().get();
  if (!value.ok()) return value.status();
  const absl::StatusOr<double> count = value->item();
  if (!count.ok()) return count.status();
  return *count / static_cast<double>(test.size());
}

}  // namespace dtorch::examples
