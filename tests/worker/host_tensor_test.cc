#include "worker/host_tensor.h"

#include <ATen/ATen.h>

#include <random>

#include "core/shard.h"
#include "tests/catch.h"
#include "tests/worker/worker_driver.h"

namespace dtorch {
namespace {

const Placement kR = Placement::replicate();

absl::Span<const std::byte> bytesOf(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

at::Tensor numbers(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return at::arange(count, at::kFloat).reshape(shape);
}

HostLayout whole(const at::Tensor& tensor, Placements placements) {
  return {*makeMeta(DType::kFloat32, tensor.sizes().vec()), std::move(placements), false, {}};
}

// All ranks' parts, in mesh order.
std::vector<at::Tensor> place(const at::Tensor& tensor, const DeviceMesh& mesh, const Placements& placements) {
  std::vector<at::Tensor> parts;
  for (const Rank rank : mesh.ranks()) {
    absl::StatusOr<at::Tensor> part =
        localPart(whole(tensor, placements), bytesOf(tensor), mesh, *mesh.coordinate(rank));
    REQUIRE(part.ok());
    CHECK(part->is_contiguous());
    parts.push_back(*part);
  }
  return parts;
}

}  // namespace

TEST_CASE("shards follow torch.chunk, empty ones included") {
  const at::Tensor tensor = numbers({5, 3});
  const std::vector<at::Tensor> parts = place(tensor, cpuMesh({4}), {Placement::shard(0)});
  const std::vector<at::Tensor> chunks = tensor.chunk(4, 0);  // 2, 2, 1 rows
  for (std::size_t i = 0; i < chunks.size(); ++i) CHECK(at::equal(parts[i], chunks[i]));
  CHECK(parts[3].sizes() == at::IntArrayRef({0, 3}));
  const std::vector<at::Tensor> columns = place(tensor, cpuMesh({2}), {Placement::shard(1)});
  CHECK(at::equal(at::cat(columns, 1), tensor));
}

TEST_CASE("parts are copies: the host's bytes may go") {
  at::Tensor tensor = numbers({4});
  const std::vector<at::Tensor> parts = place(tensor, cpuMesh({2}), {kR});
  tensor.zero_();
  CHECK(at::equal(parts[0], numbers({4})));
  CHECK(at::equal(parts[1], numbers({4})));
}

TEST_CASE("random shapes over two mesh dimensions come together again") {
  const unsigned seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    const auto upTo = [&](std::int64_t most) { return std::uniform_int_distribution<std::int64_t>(0, most)(random); };
    const DeviceMesh mesh = cpuMesh({1 + upTo(2), 1 + upTo(2)});
    const at::Tensor tensor = numbers({upTo(6), 1 + upTo(4), 1 + upTo(3)});
    const auto pick = [&] { return upTo(3) == 3 ? kR : Placement::shard(static_cast<int>(upTo(2))); };
    const Placements placements{pick(), pick()};
    INFO(toString(placements));
    const std::vector<at::Tensor> parts = place(tensor, mesh, placements);
    at::Tensor back = tensor.clone().fill_(-1);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      at::Tensor view = back;
      for (int d = 0; d < 3; ++d) {
        const ShardRange range =
            localRange(tensor.size(d), d, mesh, placements, *mesh.coordinate(static_cast<Rank>(i)));
        view = view.narrow(d, range.offset, range.length);
      }
      view.copy_(parts[i]);
    }
    CHECK(at::equal(back, tensor));
  }
}

TEST_CASE("the parts of a Partial tensor combine into its value") {
  const at::Tensor tensor = numbers({5, 3}) - 7;
  const auto combined = [&](ReduceOp op) { return at::stack(place(tensor, cpuMesh({3}), {Placement::partial(op)})); };
  CHECK(at::equal(combined(ReduceOp::kSum).sum(0), tensor));
  CHECK(at::equal(combined(ReduceOp::kProduct).prod(0), tensor));
  CHECK(at::equal(combined(ReduceOp::kMin).amin(0), tensor));
  CHECK(at::equal(combined(ReduceOp::kMax).amax(0), tensor));
  CHECK(at::equal(combined(ReduceOp::kAvg).mean(0), tensor));
  const std::vector<at::Tensor> mixed =
      place(tensor, cpuMesh({2, 2}), {Placement::shard(0), Placement::partial(ReduceOp::kSum)});
  CHECK(at::equal(at::cat({mixed[0] + mixed[1], mixed[2] + mixed[3]}, 0), tensor));
}

TEST_CASE("given parts are taken as they are") {
  const DeviceMesh mesh = cpuMesh({3});
  const std::vector<at::Tensor> parts{numbers({2, 3}), numbers({2, 3}) * 2, numbers({1, 3}) * 3};
  const at::Tensor bytes = at::cat(parts, 0);
  HostLayout host{*makeMeta(DType::kFloat32, {5, 3}), {Placement::shard(0)}, true, {{2, 3}, {2, 3}, {1, 3}}};
  for (Rank rank = 0; rank < 3; ++rank) {
    absl::StatusOr<at::Tensor> part = localPart(host, bytesOf(bytes), mesh, {rank});
    REQUIRE(part.ok());
    CHECK(at::equal(*part, parts[static_cast<std::size_t>(rank)]));
  }
  SECTION("a part that is not what its placement says") {
    host.partShapes[1] = {3, 2};
    CHECK(localPart(host, bytesOf(bytes), mesh, {1}).status().code() == absl::StatusCode::kInvalidArgument);
  }
  SECTION("a missing part") {
    host.partShapes.pop_back();
    CHECK(localPart(host, bytesOf(bytes), mesh, {0}).status().code() == absl::StatusCode::kInvalidArgument);
  }
  SECTION("parts whose size overflows") {
    host.partShapes[0] = {std::int64_t{1} << 62, 16};
    CHECK(localPart(host, bytesOf(bytes), mesh, {1}).status().code() == absl::StatusCode::kInvalidArgument);
  }
  SECTION("a negative extent") {
    host.partShapes[0] = {-2, 3};
    CHECK(localPart(host, bytesOf(bytes), mesh, {1}).status().code() == absl::StatusCode::kInvalidArgument);
  }
}

TEST_CASE("too few bytes are an error, not a read past the end") {
  const at::Tensor tensor = numbers({4, 2});
  const absl::Span<const std::byte> bytes = bytesOf(tensor).first(tensor.nbytes() - 1);
  CHECK(localPart(whole(tensor, {kR}), bytes, cpuMesh({1}), {0}).status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("copyOut writes rows in order, whatever the strides") {
  const at::Tensor tensor = numbers({3, 4}).t();
  std::vector<float> out(12);
  copyOut(tensor, reinterpret_cast<std::byte*>(out.data()));
  CHECK(out == std::vector<float>{0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11});
  copyOut(numbers({0, 4}), nullptr);
}

}  // namespace dtorch
