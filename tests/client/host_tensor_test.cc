#include "client/cpp/host_tensor.h"

#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "tests/catch.h"

namespace dtorch {
namespace {

/// The element at a row-major position, by the definition of strides.
std::int32_t at(const std::vector<std::int32_t>& memory, const TensorMeta& meta, std::int64_t position) {
  std::int64_t offset = 0;
  for (std::size_t d = meta.shape.size(); d-- > 0;) {
    offset += position % meta.shape[d] * meta.strides[d];
    position /= meta.shape[d];
  }
  return memory[static_cast<std::size_t>(offset)];
}

TEST_CASE("A view's elements are copied in row-major order, whatever the strides and the piece") {
  const auto seed = GENERATE(range(0u, 200u));
  CAPTURE(seed);
  std::mt19937 random(seed);
  std::vector<std::int64_t> shape(random() % 5);
  for (auto& extent : shape) extent = 1 + random() % 4;
  std::vector<std::int64_t> strides = contiguousStrides(shape);
  std::shuffle(strides.begin(), strides.end(), random);
  for (auto& stride : strides) stride = random() % 4 == 0 ? 0 : stride * (1 + random() % 2);
  std::vector<std::int32_t> memory(4096);
  std::iota(memory.begin(), memory.end(), 0);

  const HostView view = HostView::of(memory, shape, strides);
  const auto meta = checkView(view);
  REQUIRE(meta.ok());
  const std::int64_t first = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(meta->numel()));
  const std::int64_t count =
      static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(meta->numel() - first + 1));
  std::vector<std::int32_t> copied(static_cast<std::size_t>(count));
  copyElements(view, first, count, reinterpret_cast<std::byte*>(copied.data()));
  for (std::int64_t i = 0; i < count; ++i)
    CHECK(copied[static_cast<std::size_t>(i)] == at(memory, view.meta, first + i));
}

TEST_CASE("Every element size is copied across strides") {
  const DType dtype = GENERATE(DType::kInt8, DType::kBFloat16, DType::kFloat32, DType::kFloat64, DType::kComplex128);
  const auto size = static_cast<std::size_t>(elementSize(dtype));
  std::vector<std::uint8_t> memory(6 * size);
  std::iota(memory.begin(), memory.end(), std::uint8_t{0});
  std::vector<std::uint8_t> copied(3 * size);
  const HostView view = HostView::raw(memory.data(), memory.size(), dtype, {3}, {2});
  REQUIRE(checkView(view).ok());
  copyElements(view, 0, 3, reinterpret_cast<std::byte*>(copied.data()));
  for (std::size_t i = 0; i < copied.size(); ++i) CHECK(copied[i] == memory[i / size * 2 * size + i % size]);
}

TEST_CASE("A view that reaches past its memory is refused") {
  const std::vector<float> memory(6);
  CHECK(checkView(HostView::of(memory, {2, 3})).ok());
  CHECK(checkView(HostView::of(memory, {100, 6}, {0, 1})).ok());
  CHECK(checkView(HostView::of(memory, {0, 7})).ok());
  CHECK(checkView(HostView::of(memory, {7})).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(checkView(HostView::of(memory, {2, 3}, {4, 1})).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(checkView(HostView::of(memory, {2, 3}, {3})).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(checkView(HostView::of(memory, {2}, {-1})).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(checkView(HostView::of(memory, {-1})).status().code() == absl::StatusCode::kInvalidArgument);
  const std::int64_t huge = std::int64_t{1} << 62;
  CHECK(checkView(HostView::of(memory, {huge, huge})).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(checkView(HostView::of(memory, {2, 2}, {huge, huge})).status().code() == absl::StatusCode::kInvalidArgument);
}

template <typename T>
double itemOf(DType dtype, T bits) {
  std::shared_ptr<std::byte[]> data(new std::byte[sizeof(T)]);
  std::memcpy(data.get(), &bits, sizeof(T));
  const auto item = HostTensor(*makeMeta(dtype, {}), data).item();
  REQUIRE(item.ok());
  return *item;
}

TEST_CASE("item() reads every real dtype") {
  CHECK(itemOf(DType::kBool, std::uint8_t{1}) == 1);
  CHECK(itemOf(DType::kInt8, std::int8_t{-3}) == -3);
  CHECK(itemOf(DType::kUInt64, std::uint64_t{1} << 63) == std::ldexp(1.0, 63));
  CHECK(itemOf(DType::kFloat32, 1.5f) == 1.5);
  CHECK(itemOf(DType::kFloat16, std::uint16_t{0x3C01}) == 1 + 1.0 / 1024);
  CHECK(itemOf(DType::kFloat16, std::uint16_t{0x8001}) == -std::ldexp(1.0, -24));
  CHECK(std::isinf(itemOf(DType::kFloat16, std::uint16_t{0x7C00})));
  CHECK(itemOf(DType::kBFloat16, std::uint16_t{0xC040}) == -3);
  CHECK(itemOf(DType::kFloat8E4M3FN, std::uint8_t{0x7E}) == 448);
  CHECK(std::isnan(itemOf(DType::kFloat8E4M3FN, std::uint8_t{0x7F})));
  CHECK(itemOf(DType::kFloat8E5M2, std::uint8_t{0x7B}) == 57344);
  CHECK(itemOf(DType::kFloat8E4M3FNUZ, std::uint8_t{0x7F}) == 240);
  CHECK(std::isnan(itemOf(DType::kFloat8E5M2FNUZ, std::uint8_t{0x80})));
}

TEST_CASE("item() and values() refuse what they cannot give") {
  std::shared_ptr<std::byte[]> data(new std::byte[16]);
  CHECK_FALSE(HostTensor(*makeMeta(DType::kFloat32, {2}), data).item().ok());
  CHECK_FALSE(HostTensor(*makeMeta(DType::kComplex64, {1}), data).item().ok());
  CHECK_FALSE(HostTensor().item().ok());
  CHECK_FALSE(HostTensor(*makeMeta(DType::kFloat32, {2}), data).values<double>().ok());
  CHECK(HostTensor(*makeMeta(DType::kFloat32, {2}), data).values<float>()->size() == 2);
}

}  // namespace
}  // namespace dtorch
