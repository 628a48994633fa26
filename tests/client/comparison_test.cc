#include "client/cpp/comparison.h"

#include <cmath>
#include <complex>
#include <limits>
#include <random>
#include <vector>

#include "tests/catch.h"

namespace dtorch {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

using Doubles = std::vector<double>;
Comparison compared(const Doubles& actual, const Doubles& expected, const Tolerance& tolerance = {}) {
  const auto size = static_cast<std::int64_t>(actual.size());
  return compare(HostView::of(actual, {size}), HostView::of(expected, {size}), tolerance);
}

TEST_CASE("Equal tensors have no mismatch, whatever their strides") {
  const std::vector<float> rows = {1, 2, 3, 4, 5, 6};
  const std::vector<float> columns = {1, 4, 2, 5, 3, 6};
  const Comparison same = compare(HostView::of(rows, {2, 3}), HostView::of(columns, {2, 3}, {1, 2}));
  CHECK(same.ok());
  CHECK(same.elements == 6);
  CHECK(same.toString() == "0 of 6 elements differ");
  CHECK(compare(HostView::of(rows, {0, 3}), HostView::of(columns, {0, 3})).ok());
}

TEST_CASE("The first mismatch, its values and the greatest difference are told") {
  const std::vector<float> actual = {1, 2, 3.5, 4, 9, 6};
  const std::vector<float> expected = {1, 2, 3, 4, 5, 6};
  const Comparison comparison = compare(HostView::of(actual, {2, 3}), HostView::of(expected, {2, 3}));
  CHECK_FALSE(comparison.ok());
  CHECK(comparison.mismatches == 2);
  CHECK(comparison.firstMismatch == std::vector<std::int64_t>{0, 2});
  CHECK(comparison.actual == "3.5");
  CHECK(comparison.expected == "3");
  CHECK(comparison.greatestDifference == 4);
  CHECK(comparison.greatestAt == std::vector<std::int64_t>{1, 1});
  CHECK(comparison.toString() ==
        "2 of 6 elements differ, first at [0, 2]: 3.5, expected 3; the greatest difference is 4, at [1, 1]");
}

TEST_CASE("Large tensors are compared whole") {
  std::vector<std::int32_t> actual(10'000);
  const std::vector<std::int32_t> expected(10'000);
  actual[9'999] = -2;
  const Comparison comparison = compare(HostView::of(actual, {100, 100}), HostView::of(expected, {100, 100}));
  CHECK(comparison.mismatches == 1);
  CHECK(comparison.firstMismatch == std::vector<std::int64_t>{99, 99});
  CHECK(comparison.actual == "-2");
}

TEST_CASE("Tolerances are numpy.allclose's: absolute, and relative to what is expected") {
  CHECK(compared({1.05}, {1.0}, {.relative = 0.05001}).ok());
  CHECK_FALSE(compared({1.06}, {1.0}, {.relative = 0.05001}).ok());
  CHECK(compared({0.001}, {0.0}, {.absolute = 0.001}).ok());
  CHECK_FALSE(compared({0.001}, {0.0}, {.relative = 1e9}).ok());
  CHECK(compared({-103}, {-100}, {.relative = 0.02, .absolute = 1}).ok());
  CHECK_FALSE(compared({-103.1}, {-100}, {.relative = 0.02, .absolute = 1}).ok());
  CHECK(compared({1.05}, {1.0}, {.relative = 1}).greatestDifference == Approx(0.05));  // told although it is close
}

TEST_CASE("Infinities and NaN are equal to themselves only, NaN when asked") {
  const Tolerance loose{.relative = 1, .absolute = 1e300};
  CHECK(compared({kInf, -kInf}, {kInf, -kInf}, loose).ok());
  for (const auto& [actual, expected] : {std::pair{kInf, -kInf}, {1.0, kInf}, {kInf, 1.0}, {kNan, 1.0}, {1.0, kNan}}) {
    const Comparison comparison = compared({actual}, {expected}, loose);
    CHECK(comparison.mismatches == 1);
    CHECK(comparison.greatestDifference == kInf);
  }
  CHECK(compared({kNan}, {kNan}, loose).mismatches == 1);
  CHECK(compared({kNan}, {kNan}).actual == "nan");
  CHECK(compared({kNan}, {kNan}, {.equalNan = true}).ok());
  CHECK(compared({-0.0}, {0.0}).ok());
}

TEST_CASE("Integers of 64 bits are compared in all their bits") {
  const std::vector<std::int64_t> actual = {std::numeric_limits<std::int64_t>::max()};
  const std::vector<std::int64_t> expected = {std::numeric_limits<std::int64_t>::max() - 1};
  const Comparison comparison = compare(HostView::of(actual, {}), HostView::of(expected, {}));
  CHECK(comparison.mismatches == 1);
  CHECK(comparison.firstMismatch.empty());
  CHECK(comparison.actual == "9223372036854775807");
  CHECK(comparison.greatestDifference == 1);
  const std::vector<std::uint64_t> most = {std::numeric_limits<std::uint64_t>::max()};
  const std::vector<std::uint64_t> less = {std::numeric_limits<std::uint64_t>::max() - 3};
  CHECK(compare(HostView::of(most, {}), HostView::of(less, {})).greatestDifference == 3);
}

TEST_CASE("Complex numbers differ by their distance") {
  const std::vector<std::complex<float>> actual = {{1, 2}, {3, 4}};
  const std::vector<std::complex<float>> expected = {{1, 2}, {0, 0}};
  const Comparison comparison = compare(HostView::of(actual, {2}), HostView::of(expected, {2}));
  CHECK(comparison.actual == "(3+4j)");
  CHECK(comparison.greatestDifference == 5);
  CHECK(compare(HostView::of(actual, {2}), HostView::of(expected, {2}), {.absolute = 5}).ok());
}

TEST_CASE("Other shapes are a problem, other dtypes one of equality") {
  const std::vector<float> floats = {1, 2};
  const std::vector<double> doubles = {1, 2};
  CHECK(compare(HostView::of(floats, {2}), HostView::of(floats, {1, 2})).problem ==
        "it is float32[2], expected float32[1, 2]");
  CHECK(compare(HostView::of(floats, {2}), HostView::of(doubles, {2})).problem ==
        "it is float32[2], expected float64[2]");
  CHECK(compare(HostView::of(floats, {2}), HostView::of(doubles, {2}), {.absolute = 1e-9}).ok());
  const std::vector<std::uint16_t> brain = {0x3F80, 0x4000};  // bfloat16 1 and 2
  const HostView brainView = HostView::raw(brain.data(), 4, DType::kBFloat16, {2});
  CHECK(compare(brainView, HostView::of(floats, {2})).ok());  // as an .npy file has it
  CHECK_FALSE(compare(HostView::of(floats, {2}), brainView).ok());
}

}  // namespace
}  // namespace dtorch
