#include "examples/digits/digits_data.h"

#include <zlib.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace dtorch::examples {
namespace {

constexpr int kWhite = 16;
constexpr std::size_t kMaxLine = 256;

// One line of the file into `data`; false if it is not an image.
bool appendImage(absl::string_view line, DigitsData& data) {
  const std::vector<absl::string_view> fields = absl::StrSplit(line, ',');
  if (fields.size() != DigitsData::kPixels + 1) return false;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const bool isLabel = i + 1 == fields.size();
    int number = 0;
    if (!absl::SimpleAtoi(fields[i], &number) || number < 0 || number > (isLabel ? 9 : kWhite)) return false;
    if (isLabel) {
      data.labels.push_back(number);
    } else {
      data.pixels.push_back(static_cast<float>(number) / kWhite);
    }
  }
  return true;
}

}  // namespace

absl::StatusOr<DigitsData> loadDigits(const std::string& path) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (file == nullptr) return absl::NotFoundError(absl::StrCat("cannot open ", path, ": ", std::strerror(errno)));
  DigitsData data;
  std::array<char, kMaxLine> line{};
  while (gzgets(file.get(), line.data(), static_cast<int>(line.size())) != nullptr) {
    if (!appendImage(absl::StripTrailingAsciiWhitespace(line.data()), data)) {
      return absl::DataLossError(absl::StrCat(path, ", line ", data.rows() + 1, ": expected 64 numbers from 0 to ",
                                              kWhite, " and a digit, found: ", line.data()));
    }
  }
  int error = Z_OK;
  const char* message = gzerror(file.get(), &error);
  if (error != Z_OK && error != Z_STREAM_END) {
    return absl::DataLossError(absl::StrCat(path, " is damaged after line ", data.rows(), ": ", message));
  }
  if (data.labels.empty()) return absl::DataLossError(absl::StrCat(path, " is empty"));
  return data;
}

}  // namespace dtorch::examples
