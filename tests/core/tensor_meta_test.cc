#include "core/tensor_meta.h"

#include "core/call_site.h"
#include "core/dtype.h"
#include "tests/catch.h"

namespace dtorch {
namespace {

using Shape = std::vector<std::int64_t>;

TEST_CASE("parts lie in the order of the whole's dimensions") {
  const auto of = [](Shape shape, Shape strides, const Shape& part) {
    return stridesInOrderOf({DType::kFloat32, std::move(shape), std::move(strides)}, part);
  };
  CHECK(of({4, 6}, {6, 1}, {2, 6}) == Shape{6, 1});
  CHECK(of({4, 6}, {1, 4}, {2, 6}) == Shape{1, 2});
  CHECK(of({4, 6, 8}, {8, 32, 1}, {4, 3, 8}) == Shape{8, 32, 1});
  CHECK(of({4, 6, 8}, {48, 1, 6}, {2, 6, 8}) == Shape{48, 1, 6});
  CHECK(of({4, 1, 2}, {2, 99, 1}, {4, 1, 2}).at(0) == 2);  // the stride of one element says nothing
  CHECK(of({2, 3}, {3, 1}, {0, 3}) == Shape{3, 1});        // a part without elements
  CHECK(of({2, 3}, {6, 2}, {1, 3}).empty());               // has gaps
  CHECK(of({2, 3}, {0, 1}, {1, 3}).empty());               // overlaps
  CHECK(of({0, 3}, {3, 1}, {0, 3}).empty());               // lies nowhere
}

TEST_CASE("Every dtype has a name of its own and a size") {
  for (int i = 1; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    CAPTURE(i, std::string(name(dtype)));
    CHECK(elementSize(dtype) > 0);
    CHECK(parseDType(name(dtype)) == dtype);
  }
  CHECK_FALSE(parseDType("unspecified"));
  CHECK_FALSE(parseDType("float"));
  CHECK(elementSize(DType::kUnspecified) == 0);
  CHECK(elementSize(DType::kComplex128) == 16);
  CHECK(elementSize(DType::kFloat8E4M3FN) == 1);
  CHECK(isFloatingPoint(DType::kBFloat16));
  CHECK_FALSE(isFloatingPoint(DType::kComplex64));
  CHECK_FALSE(isFloatingPoint(DType::kBool));
}

TEST_CASE("Metadata is that of a contiguous tensor") {
  const auto meta = makeMeta(DType::kFloat32, {2, 3, 4});
  REQUIRE(meta.ok());
  CHECK(meta->strides == Shape{12, 4, 1});
  CHECK(meta->numel() == 24);
  CHECK(meta->bytes() == 96);
  CHECK(meta->toString() == "float32[2, 3, 4]");
  CHECK(makeMeta(DType::kInt8, {})->numel() == 1);
  CHECK(makeMeta(DType::kInt8, {})->toString() == "int8[]");
}

TEST_CASE("An empty tensor's strides are torch's") {
  CHECK(contiguousStrides({2, 0, 3}) == Shape{3, 3, 1});
  CHECK(makeMeta(DType::kFloat64, {0, 5})->numel() == 0);
  CHECK(makeMeta(DType::kFloat64, {0, 1LL << 62, 1LL << 62})->numel() == 0);
}

TEST_CASE("A tensor that cannot be is refused") {
  const auto code = [](DType dtype, Shape shape) { return makeMeta(dtype, std::move(shape)).status().code(); };
  CHECK(code(DType::kUnspecified, {1}) == absl::StatusCode::kInvalidArgument);
  CHECK(code(DType::kInt8, {-1}) == absl::StatusCode::kInvalidArgument);
  CHECK(code(DType::kInt8, {0, -1}) == absl::StatusCode::kInvalidArgument);
  CHECK(code(DType::kInt8, {1LL << 62, 4}) == absl::StatusCode::kInvalidArgument);
  CHECK(code(DType::kFloat64, {1LL << 60}) == absl::StatusCode::kInvalidArgument);
  CHECK(code(DType::kInt8, {1LL << 62}) == absl::StatusCode::kOk);
  CHECK(code(DType::kInt8, Shape(65, 1)) == absl::StatusCode::kInvalidArgument);
  CHECK(code(DType::kInt8, Shape(64, 1)) == absl::StatusCode::kOk);
}

TEST_CASE("A call site prints as file and line") {
  CHECK(CallSite{"train.cc", 41}.toString() == "train.cc:41");
  CHECK(CallSite{}.toString().empty());
}

}  // namespace
}  // namespace dtorch
