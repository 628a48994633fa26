#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cpp/session.h"
#include "examples/digits/digits_data.h"

namespace dtorch::examples {

inline constexpr std::int64_t kHidden = 128;
inline constexpr std::int64_t kClasses = 10;

/// Rows of the data: images [rows, 64], what they show as one-hot rows [rows, 10] and as numbers [rows].
struct Rows {
  std::vector<double> images;
  std::vector<double> targets;
  std::vector<std::int64_t> labels;
  std::int64_t size() const { return static_cast<std::int64_t>(labels.size()); }
};
/// Row i of the data is a test row when i % 5 == 4, else a training row.
struct Split {
  Rows training;
  Rows test;
};
Split split(const DigitsData& data);

/// Weights [in, out] and biases [out] of the two layers, 64 → 128 → 10.
struct Weights {
  std::vector<double> w1, b1, w2, b2;
};
/// Uniform in ±1/sqrt(in): std::mt19937_64 of `seed`, drawn in the order w1, b1, w2, b2, row by row; a draw's upper 53
/// bits are a fraction of the interval. The same everywhere.
Weights initialWeights(std::uint64_t seed);

struct TrainOptions {
  int steps = 500;
  double rate = 0.25;
  DType dtype = DType::kFloat32;
  int lossEvery = 1;  // steps
};

/// Full-batch gradient descent on the cross-entropy, its gradients written out as tensor operators. Images lie Shard(0)
/// over the workers of `mesh` and weights are Replicate, so that each worker's gradient is a Partial summand; to
/// redistribute it to Replicate is the collective that sums it over the workers.
/// `onLoss` gets each lossEvery-th step's number, from 1, and its loss. Returns the share of test rows told right.
absl::StatusOr<double> train(Session& session, const Mesh& mesh, const Split& data, const Weights& weights,
                             const TrainOptions& options, const std::function<void(int step, double loss)>& onLoss);

}  // namespace dtorch::examples
