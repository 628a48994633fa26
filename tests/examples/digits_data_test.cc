#include "examples/digits/digits_data.h"

#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "absl/strings/match.h"
#include "tests/catch.h"

namespace dtorch::examples {
namespace {

// The expected numbers were computed from the table with Python, in integers: pixel * 16, no floating point.

DigitsData shipped() {
  auto data = loadDigits(DTORCH_DIGITS_FILE);
  REQUIRE(data.ok());
  return *std::move(data);
}

TEST_CASE("the shipped digits have the rows and labels of the data set") {
  const DigitsData data = shipped();
  CHECK(data.rows() == 1797);
  CHECK(data.pixels.size() == 115008);  // 1,797 * 64
  std::vector<int> histogram(10);
  for (const std::int64_t label : data.labels) ++histogram.at(static_cast<std::size_t>(label));
  CHECK(histogram == std::vector<int>{178, 182, 177, 183, 181, 182, 181, 179, 174, 180});
}

TEST_CASE("the rows with i % 5 != 4, the training part, have their own histogram") {
  const DigitsData data = shipped();
  std::vector<int> histogram(10);
  for (std::size_t i = 0; i < data.labels.size(); ++i) {
    if (i % 5 != 4) ++histogram.at(static_cast<std::size_t>(data.labels[i]));
  }
  CHECK(histogram == std::vector<int>{151, 161, 143, 131, 147, 154, 150, 136, 127, 138});
}

TEST_CASE("each pixel of the shipped digits is where it belongs") {
  const DigitsData data = shipped();
  CHECK(std::accumulate(data.pixels.begin(), data.pixels.end(), 0.0) == 561718 / 16.0);
  CHECK(*std::max_element(data.pixels.begin(), data.pixels.end()) == 1.0F);
  CHECK(*std::min_element(data.pixels.begin(), data.pixels.end()) == 0.0F);
  double weighted = 0;  // sum over rows i and columns j, both from 1, of i * j * pixel: no two may be swapped
  for (std::size_t k = 0; k < data.pixels.size(); ++k) {
    const std::size_t row = k / 64;
    const std::size_t column = k % 64;
    weighted += static_cast<double>((row + 1) * (column + 1)) * static_cast<double>(data.pixels[k]);
  }
  for (std::size_t i = 0; i < data.labels.size(); ++i) {
    weighted += static_cast<double>(i + 1) * 65 * static_cast<double>(data.labels[i]) / 16;
  }
  CHECK(weighted == 16809934574 / 16.0);
}

/// A gzipped file in the temporary folder.
class TemporaryTable {
 public:
  explicit TemporaryTable(const std::string& text)
      : path_(
            (std::filesystem::temp_directory_path() / ("dtorch_digits_test." + std::to_string(::getpid()))).string()) {
    gzFile file = gzopen(path_.c_str(), "wb");
    REQUIRE(file != nullptr);
    gzputs(file, text.c_str());
    REQUIRE(gzclose(file) == Z_OK);
  }
  TemporaryTable(const TemporaryTable&) = delete;
  ~TemporaryTable() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string image(const std::string& pixel, const std::string& label) {
  std::string line;
  for (int i = 0; i < 64; ++i) line += pixel + ",";
  return line + label + "\n";
}

TEST_CASE("a line that is not an image is DATA_LOSS with its number") {
  for (const std::string& bad :
       {std::string("1,2,3\n"), image("17", "1"), image("-1", "1"), image("1", "10"), image("1", ""), image("x", "1"),
        image("1", "1,1"), image("1234567", "1"), std::string("\n")}) {
    CAPTURE(bad);
    const TemporaryTable table(image("8", "3") + bad);
    const auto data = loadDigits(table.path());
    REQUIRE(data.status().code() == absl::StatusCode::kDataLoss);
    CHECK(absl::StrContains(data.status().message(), "line 2"));
  }
}

TEST_CASE("a missing, an empty and a cut file are errors") {
  CHECK(loadDigits("/nonexistent/digits.csv.gz").status().code() == absl::StatusCode::kNotFound);
  const TemporaryTable empty("");
  CHECK(loadDigits(empty.path()).status().code() == absl::StatusCode::kDataLoss);

  const TemporaryTable cut("");
  std::filesystem::copy_file(DTORCH_DIGITS_FILE, cut.path(), std::filesystem::copy_options::overwrite_existing);
  std::filesystem::resize_file(cut.path(), 20000);
  CHECK(loadDigits(cut.path()).status().code() == absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace dtorch::examples
