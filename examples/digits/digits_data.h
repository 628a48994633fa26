#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace dtorch::examples {

/// Images of handwritten digits with what they show; see data/README.md.
struct DigitsData {
  static constexpr std::int64_t kPixels = 64;  // 8×8, row by row
  std::vector<float> pixels;                   // [rows, kPixels], from 0 to 1
  std::vector<std::int64_t> labels;            // [rows], from 0 to 9

  std::int64_t rows() const { return static_cast<std::int64_t>(labels.size()); }
};

/// Reads a gzipped table: a line an image, 64 numbers from 0 to 16 and the digit, separated by commas.
/// NOT_FOUND: no such file. DATA_LOSS: it is damaged or holds something else; the message has the line.
absl::StatusOr<DigitsData> loadDigits(const std::string& path);

}  // namespace dtorch::examples
