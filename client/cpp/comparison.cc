#include "client/cpp/comparison.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cpp/element.h"
#include "client/cpp/npy_file.h"

namespace dtorch {
namespace {

constexpr std::int64_t kPiece = 1024;  // elements that are copied together
constexpr int kLargestElement = 16;

bool isNan(Element element) { return std::isnan(element.real()) || std::isnan(element.imag()); }
bool isFinite(Element element) { return std::isfinite(element.real()) && std::isfinite(element.imag()); }

struct Verdict {
  bool close;
  double difference;
};

Verdict judge(Element actual, Element expected, const Tolerance& tolerance) {
  if (actual == expected) return {true, 0};
  if (isNan(actual) && isNan(expected)) return {tolerance.equalNan, 0};
  if (!isFinite(actual) || !isFinite(expected)) return {false, std::numeric_limits<double>::infinity()};
  const long double difference = std::abs(actual - expected);
  return {difference <= tolerance.absolute + tolerance.relative * std::abs(expected), static_cast<double>(difference)};
}

std::vector<std::int64_t> indexOf(std::int64_t position, const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> index(shape.size());
  for (std::size_t d = shape.size(); d-- > 0;) {
    index[d] = position % shape[d];
    position /= shape[d];
  }
  return index;
}

std::string format(const std::vector<std::int64_t>& index) {
  return absl::StrCat("[", absl::StrJoin(index, ", "), "]");
}

}  // namespace

Comparison compare(const HostView& actual, const HostView& expected, const Tolerance& tolerance) {
  Comparison result;
  const bool exact = tolerance.relative == 0 && tolerance.absolute == 0;
  const DType dtype = actual.meta.dtype;
  const bool sameDType = dtype == expected.meta.dtype || npyDType(dtype) == expected.meta.dtype;
  if (actual.meta.shape != expected.meta.shape || (exact && !sameDType)) {
    result.problem = absl::StrCat("it is ", actual.meta.toString(), ", expected ", expected.meta.toString());
    return result;
  }
  result.elements = actual.meta.numel();
  std::array<std::byte, kPiece * kLargestElement> actualBytes;
  std::array<std::byte, kPiece * kLargestElement> expectedBytes;
  std::int64_t greatest = -1;
  for (std::int64_t first = 0; first < result.elements; first += kPiece) {
    const std::int64_t count = std::min(kPiece, result.elements - first);
    copyElements(actual, first, count, actualBytes.data());
    copyElements(expected, first, count, expectedBytes.data());
    for (std::int64_t i = 0; i < count; ++i) {
      const Element a = readElement(actualBytes.data() + i * elementSize(dtype), dtype);
      const Element e = readElement(expectedBytes.data() + i * elementSize(expected.meta.dtype), expected.meta.dtype);
      const Verdict verdict = judge(a, e, tolerance);
      if (verdict.difference > result.greatestDifference) {
        result.greatestDifference = verdict.difference;
        greatest = first + i;
      }
      if (verdict.close || ++result.mismatches > 1) continue;
      result.firstMismatch = indexOf(first + i, actual.meta.shape);
      result.actual = formatElement(a, dtype);
      result.expected = formatElement(e, expected.meta.dtype);
    }
  }
  if (greatest >= 0) result.greatestAt = indexOf(greatest, actual.meta.shape);
  return result;
}

std::string Comparison::toString() const {
  if (!problem.empty()) return problem;
  std::string text = absl::StrCat(mismatches, " of ", elements, " elements differ");
  if (mismatches > 0) {
    absl::StrAppend(&text, ", first at ", format(firstMismatch), ": ", actual, ", expected ", expected);
  }
  if (greatestDifference > 0) {
    absl::StrAppend(&text, "; the greatest difference is ", greatestDifference, ", at ", format(greatestAt));
  }
  return text;
}

}  // namespace dtorch
