#include "client/cpp/npy_file.h"

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "client/cpp/element.h"

namespace dtorch {
namespace {

static_assert(std::endian::native == std::endian::little, "files are written as the bytes lie in memory");

constexpr absl::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kAlignment = 64;

struct Row {
  DType dtype;
  absl::string_view descr;
};
constexpr std::array<Row, 14> kDescr = {{{DType::kBool, "|b1"},
                                         {DType::kUInt8, "|u1"},
                                         {DType::kInt8, "|i1"},
                                         {DType::kUInt16, "<u2"},
                                         {DType::kInt16, "<i2"},
                                         {DType::kUInt32, "<u4"},
                                         {DType::kInt32, "<i4"},
                                         {DType::kUInt64, "<u8"},
                                         {DType::kInt64, "<i8"},
                                         {DType::kFloat16, "<f2"},
                                         {DType::kFloat32, "<f4"},
                                         {DType::kFloat64, "<f8"},
                                         {DType::kComplex64, "<c8"},
                                         {DType::kComplex128, "<c16"}}};

absl::string_view descrOf(DType dtype) {
  for (const Row& row : kDescr) {
    if (row.dtype == dtype) return row.descr;
  }
  return "";
}

// The elements as the file has them.
std::vector<std::byte> contents(const HostView& value, const TensorMeta& meta) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(meta.bytes()));
  copyElements(value, 0, meta.numel(), bytes.data());
  if (npyDType(meta.dtype) == meta.dtype) return bytes;
  std::vector<float> floats;
  const auto size = static_cast<std::size_t>(elementSize(meta.dtype));
  for (std::size_t at = 0; at < bytes.size(); at += size) {
    const Element element = readElement(bytes.data() + at, meta.dtype);
    floats.push_back(static_cast<float>(element.real()));
    if (isComplex(meta.dtype)) floats.push_back(static_cast<float>(element.imag()));
  }
  std::vector<std::byte> widened(floats.size() * sizeof(float));
  if (!widened.empty()) std::memcpy(widened.data(), floats.data(), widened.size());
  return widened;
}

std::string header(DType dtype, const std::vector<std::int64_t>& shape) {
  std::string text = absl::StrCat("{'descr': '", descrOf(dtype), "', 'fortran_order': False, 'shape': (",
                                  absl::StrJoin(shape, ", "), shape.size() == 1 ? ",), }" : "), }");
  const std::size_t prefix = kMagic.size() + 4;  // version, length
  text.append(kAlignment - (prefix + text.size() + 1) % kAlignment, ' ');
  text.push_back('\n');
  const auto length = static_cast<std::uint16_t>(text.size());
  return absl::StrCat(kMagic, absl::string_view("\1\0", 2),
                      absl::string_view(reinterpret_cast<const char*>(&length), sizeof length), text);
}

// What stands behind `key` in the header's dictionary, up to `end`.
absl::string_view entry(absl::string_view dictionary, absl::string_view key, absl::string_view end) {
  const std::size_t at = dictionary.find(absl::StrCat("'", key, "':"));
  if (at == absl::string_view::npos) return "";
  const absl::string_view rest = dictionary.substr(at + key.size() + 3);
  return absl::StripAsciiWhitespace(rest.substr(0, rest.find(end)));
}

absl::StatusOr<TensorMeta> parseHeader(absl::string_view dictionary) {
  const absl::string_view descr = entry(dictionary, "descr", ",");
  DType dtype = DType::kUnspecified;
  for (const Row& row : kDescr) {
    if (descr == absl::StrCat("'", row.descr, "'")) dtype = row.dtype;
  }
  if (dtype == DType::kUnspecified) {
    return absl::InvalidArgumentError(absl::StrCat("its elements are ", descr, ", of which there are no tensors"));
  }
  absl::string_view extents = entry(dictionary, "shape", ")");
  if (!absl::ConsumePrefix(&extents, "(")) return absl::InvalidArgumentError("its header has no shape");
  std::vector<std::int64_t> shape;
  for (const absl::string_view text : absl::StrSplit(extents, ',', absl::SkipWhitespace())) {
    if (!absl::SimpleAtoi(text, &shape.emplace_back())) return absl::InvalidArgumentError("its shape has no numbers");
  }
  absl::StatusOr<TensorMeta> meta = makeMeta(dtype, std::move(shape));
  if (!meta.ok() || entry(dictionary, "fortran_order", ",") != "True") return meta;
  std::int64_t stride = 1;
  for (std::size_t d = 0; d < meta->shape.size(); stride *= meta->shape[d++]) meta->strides[d] = stride;
  return meta;
}

absl::StatusOr<HostTensor> parse(const std::string& file) {
  const absl::string_view text = file;
  // Version 1 has a length of 2 bytes, later ones of 4.
  if (text.size() < kMagic.size() + 6 || text.substr(0, kMagic.size()) != kMagic) {
    return absl::InvalidArgumentError("it does not begin as an .npy file does");
  }
  const std::size_t lengthBytes = text[kMagic.size()] == 1 ? 2 : 4;
  std::uint32_t length = 0;
  std::memcpy(&length, text.data() + kMagic.size() + 2, lengthBytes);
  const std::size_t begin = kMagic.size() + 2 + lengthBytes;
  if (length > text.size() - begin) return absl::InvalidArgumentError("it ends in its header");
  absl::StatusOr<TensorMeta> meta = parseHeader(text.substr(begin, length));
  if (!meta.ok()) return meta.status();
  const absl::string_view data = text.substr(begin + length);
  const HostView view{reinterpret_cast<const std::byte*>(data.data()), data.size(), *meta};
  absl::StatusOr<TensorMeta> contiguous = checkView(view);
  if (!contiguous.ok()) return contiguous.status();
  const std::shared_ptr<std::byte[]> copy(new std::byte[static_cast<std::size_t>(contiguous->bytes())]);
  copyElements(view, 0, contiguous->numel(), copy.get());
  return HostTensor(*std::move(contiguous), copy);
}

}  // namespace

DType npyDType(DType dtype) {
  if (dtype == DType::kComplex32) return DType::kComplex64;
  return isFloatingPoint(dtype) && descrOf(dtype).empty() ? DType::kFloat32 : dtype;
}

absl::Status writeNpy(const std::string& path, const HostView& value) {
  const absl::StatusOr<TensorMeta> meta = checkView(value);
  if (!meta.ok()) return meta.status();
  const std::vector<std::byte> bytes = contents(value, *meta);
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << header(npyDType(meta->dtype), meta->shape);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  file.close();
  return file ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", path));
}

absl::StatusOr<HostTensor> readNpy(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("there is no file ", path));
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  absl::StatusOr<HostTensor> tensor = parse(bytes);
  if (tensor.ok()) return tensor;
  return absl::Status(tensor.status().code(), absl::StrCat(path, ": ", tensor.status().message()));
}

}  // namespace dtorch
