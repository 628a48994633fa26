#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "client/cpp/host_tensor.h"

namespace dtorch {

/// How far numbers may be apart: |actual - expected| <= absolute + relative * |expected|, as numpy.allclose has it.
/// Both 0: they are to be equal.
struct Tolerance {
  double relative = 0;
  double absolute = 0;
  bool equalNan = false;  // NaN is as good as NaN
};

/// How a tensor differs from its reference.
struct Comparison {
  /// Why they were not compared element by element: their shapes differ, or their dtypes where they are to be equal.
  std::string problem;
  std::int64_t elements = 0;
  std::int64_t mismatches = 0;
  // Of the first mismatch in row-major order, when there is one.
  std::vector<std::int64_t> firstMismatch;
  std::string actual;
  std::string expected;
  /// Over all elements; infinite where one of two is NaN, or an infinity that the other is not.
  double greatestDifference = 0;
  std::vector<std::int64_t> greatestAt;

  bool ok() const { return problem.empty() && mismatches == 0; }
  /// "3 of 24 elements differ, first at [0, 2]: 1.5, expected 1.25; the greatest difference is 0.5, at [1, 0]".
  std::string toString() const;
};

/// Both are checked views (see checkView). Numbers are compared as they are, whatever their dtypes, but for a tolerance
/// of 0, which asks for the same dtype (or the one that an .npy file has for it).
Comparison compare(const HostView& actual, const HostView& expected, const Tolerance& tolerance = {});

}  // namespace dtorch
