#include "client/cpp/tensor_checker.h"

#include <complex>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "absl/strings/escaping.h"
#include "client/cpp/npy_file.h"
#include "tests/catch.h"

namespace dtorch {
namespace {

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "dtorch-checker-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::string contentOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

const std::vector<float> kSix = {1, 2, 3, 4, 5, 6};

TEST_CASE("A file is, byte for byte, what numpy.save writes") {
  Folder folder;
  REQUIRE(writeNpy(folder.file("a.npy"), HostView::of(kSix, {2, 3})).ok());
  // numpy.save("a.npy", numpy.arange(1, 7, dtype="f4").reshape(2, 3)), NumPy 2.
  const std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
  std::string expected = absl::HexStringToBytes("934e554d50590100");
  expected += std::string("\x76\0", 2) + header + std::string(0x76 - header.size() - 1, ' ') + "\n";
  expected += std::string(reinterpret_cast<const char*>(kSix.data()), 24);
  CHECK(contentOf(folder.file("a.npy")) == expected);
}

TEST_CASE("What is written is read back: every dtype, shapes without extent or element, any strides") {
  Folder folder;
  const std::string path = folder.file("a.npy");
  for (int d = 1; d < kDTypeCount; ++d) {
    const auto dtype = static_cast<DType>(d);
    CAPTURE(name(dtype));
    const std::vector<std::uint8_t> bytes(4 * 16, 1);
    const HostView view = HostView::raw(bytes.data(), bytes.size(), dtype, {4});
    REQUIRE(writeNpy(path, view).ok());
    const auto back = readNpy(path);
    REQUIRE(back.ok());
    CHECK(back->dtype() == npyDType(dtype));
    CHECK(compare(view, viewOf(*back)).ok());
  }
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{}, {1}, {0, 3}, {6}, {1, 2, 1, 3}}) {
    REQUIRE(writeNpy(path, HostView::of(kSix, shape)).ok());
    const auto back = readNpy(path);
    REQUIRE(back.ok());
    CHECK(back->shape() == shape);
    CHECK(compare(HostView::of(kSix, shape), viewOf(*back)).ok());
  }
  REQUIRE(writeNpy(path, HostView::of(kSix, {3, 2}, {1, 3})).ok());
  const auto transposed = readNpy(path);
  CHECK(*transposed->values<float>() == absl::MakeConstSpan({1.f, 4.f, 2.f, 5.f, 3.f, 6.f}));
}

std::string npy(const std::string& header, const std::string& data) {
  std::string text = absl::HexStringToBytes("934e554d50590100");
  return text + static_cast<char>(header.size()) + std::string(1, '\0') + header + data;
}

TEST_CASE("Column-major files are read, others refused with the reason") {
  Folder folder;
  const std::string path = folder.file("a.npy");
  const auto read = [&](const std::string& content) {
    std::ofstream(path, std::ios::binary) << content;
    return readNpy(path);
  };
  const std::string six(reinterpret_cast<const char*>(kSix.data()), 24);
  const auto columns = read(npy("{'descr': '<f4', 'fortran_order': True, 'shape': (3, 2), }\n", six));
  REQUIRE(columns.ok());
  CHECK(*columns->values<float>() == absl::MakeConstSpan({1.f, 4.f, 2.f, 5.f, 3.f, 6.f}));
  CHECK(columns->meta() == *makeMeta(DType::kFloat32, {3, 2}));

  const std::string good = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (6,), }\n", six);
  CHECK(read(good).ok());
  for (std::size_t length = 0; length < good.size(); ++length) {
    CHECK(read(good.substr(0, length)).status().code() == absl::StatusCode::kInvalidArgument);
  }
  for (const char* header : {"{'descr': '>f4', 'fortran_order': False, 'shape': (6,), }\n",
                             "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (6,), }\n",
                             "{'descr': '<f4', 'fortran_order': False, 'shape': (-6,), }\n",
                             "{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807, 8), }\n",
                             "{'descr': '<f4', 'fortran_order': False, 'shape': (six,), }\n", "nonsense\n", ""}) {
    CHECK(read(npy(header, six)).status().code() == absl::StatusCode::kInvalidArgument);
  }
  CHECK(readNpy(folder.file("none.npy")).status().code() == absl::StatusCode::kNotFound);
  CHECK_FALSE(writeNpy(folder.file("no/folder.npy"), HostView::of(kSix, {6})).ok());
}

TEST_CASE("References are kept in memory by tag") {
  TensorChecker checker;
  std::vector<float> values = kSix;
  REQUIRE(checker.record("layer.1", HostView::of(values, {2, 3})).ok());
  values[4] = 0;  // it was copied
  CHECK(checker.record("layer.1", HostView::of(values, {2, 3})).code() == absl::StatusCode::kAlreadyExists);
  const auto same = checker.check("layer.1", HostView::of(kSix, {2, 3}));
  REQUIRE(same.ok());
  CHECK(same->ok());
  const auto other = checker.check("layer.1", HostView::of(values, {2, 3}));
  REQUIRE(other.ok());
  CHECK(other->firstMismatch == std::vector<std::int64_t>{1, 1});
  CHECK(checker.check("layer.2", HostView::of(kSix, {6})).status().code() == absl::StatusCode::kNotFound);
}

TEST_CASE("One run records into a folder, a later one compares with it") {
  Folder folder;
  const auto program = [&](bool record, float last) {
    TensorChecker checker({.references = folder.file("references"), .record = record});
    const std::vector<float> values = {1, 2, last};
    const auto comparison = checker.check("step0/loss", HostView::of(values, {3}));
    REQUIRE(comparison.ok());
    return *comparison;
  };
  CHECK(program(true, 3).elements == 3);
  CHECK(std::filesystem::exists(folder.file("references/step0/loss.npy")));
  CHECK(program(false, 3).ok());
  CHECK(program(false, 4).greatestDifference == 1);
  CHECK(program(true, 4).ok());
  CHECK(program(false, 4).ok());
}

TEST_CASE("What is checked is dumped: always, when unequal, or the first time only") {
  Folder folder;
  const auto [when, dumped] = GENERATE(table<DumpWhen, std::vector<std::string>>(
      {{DumpWhen::kAll, {"a", "b", "c"}}, {DumpWhen::kUnequal, {"b", "c"}}, {DumpWhen::kFirstUnequal, {"b"}}}));
  TensorChecker checker({.dumps = folder.file("dumps"), .dumpWhen = when});
  const std::vector<float> wrong(6, 9);
  for (const char* tag : {"a", "b", "c"}) {
    REQUIRE(checker.record(tag, HostView::of(kSix, {6})).ok());
    REQUIRE(checker.check(tag, HostView::of(tag[0] == 'a' ? kSix : wrong, {6})).ok());
  }
  std::vector<std::string> found;
  for (const char* tag : {"a", "b", "c"}) {
    if (!std::filesystem::exists(folder.file(std::string("dumps/") + tag + ".npy"))) continue;
    found.push_back(tag);
    const auto expected = readNpy(folder.file(std::string("dumps/") + tag + ".expected.npy"));
    REQUIRE(expected.ok());
    CHECK(*expected->values<float>() == absl::MakeConstSpan(kSix));
  }
  CHECK(found == dumped);
}

TEST_CASE("A tag cannot leave the folder") {
  Folder folder;
  TensorChecker checker({.references = folder.file("references")});
  for (const char* tag : {"", "..", "../up", "a/../b", "/root", "a//b", "a/", ".", "a b", "a\n"}) {
    CAPTURE(tag);
    CHECK(checker.record(tag, HostView::of(kSix, {6})).code() == absl::StatusCode::kInvalidArgument);
    CHECK(checker.check(tag, HostView::of(kSix, {6})).status().code() == absl::StatusCode::kInvalidArgument);
  }
  CHECK_FALSE(std::filesystem::exists(folder.file("references")));
}

}  // namespace
}  // namespace dtorch
