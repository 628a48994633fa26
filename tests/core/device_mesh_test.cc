#include "core/device_mesh.h"

#include "tests/catch.h"

namespace dtorch {
namespace {

using Shape = std::vector<std::int64_t>;
using Ranks = std::vector<Rank>;

TEST_CASE("A mesh is row-major") {
  const auto mesh = DeviceMesh::create(DeviceType::kCpu, {2, 3}, {10, 11, 12, 20, 21, 22}, {"data", "model"});
  REQUIRE(mesh.ok());
  CHECK(mesh->dims() == 2);
  CHECK(mesh->size() == 6);
  CHECK(*mesh->coordinate(10) == Shape{0, 0});
  CHECK(*mesh->coordinate(21) == Shape{1, 1});
  CHECK(mesh->coordinate(13).status().code() == absl::StatusCode::kNotFound);
  CHECK(mesh->ranksAlong(0, {1, 2}) == Ranks{12, 22});
  CHECK(mesh->ranksAlong(1, {1, 2}) == Ranks{20, 21, 22});
  CHECK(mesh->toString() == "cpu[2, 3](10, 11, 12, 20, 21, 22)");
}

TEST_CASE("Each rank is on the line through its own coordinate, at its own place") {
  const auto mesh = DeviceMesh::create(DeviceType::kCuda, {2, 2, 2}, {7, 6, 5, 4, 3, 2, 1, 0});
  REQUIRE(mesh.ok());
  for (const Rank rank : mesh->ranks()) {
    const auto coordinate = *mesh->coordinate(rank);
    for (int dim = 0; dim < 3; ++dim) {
      CHECK(mesh->ranksAlong(dim, coordinate)[static_cast<std::size_t>(coordinate[static_cast<std::size_t>(dim)])] ==
            rank);
    }
  }
}

TEST_CASE("What is no mesh is refused") {
  const auto refused = [](Shape shape, Ranks ranks, std::vector<std::string> names = {}) {
    return DeviceMesh::create(DeviceType::kCpu, std::move(shape), std::move(ranks), std::move(names)).status().code() ==
           absl::StatusCode::kInvalidArgument;
  };
  CHECK(refused({}, {}));
  CHECK(refused({0}, {}));
  CHECK(refused({-1}, {0}));
  CHECK(refused({2}, {0}));
  CHECK(refused({2}, {0, 0}));
  CHECK(refused({2}, {0, -1}));
  CHECK(refused({1LL << 62, 1LL << 62}, {0}));
  CHECK(refused({2}, {0, 1}, {"a", "b"}));
  CHECK(refused({1, 2}, {0, 1}, {"a", "a"}));
  CHECK_FALSE(refused({1, 2}, {0, 1}, {"a", "b"}));
}

TEST_CASE("Meshes are equal when device type, shape, order and names are") {
  const auto make = [](DeviceType type, Shape shape, Ranks ranks) {
    return *DeviceMesh::create(type, std::move(shape), std::move(ranks));
  };
  const DeviceMesh mesh = make(DeviceType::kCpu, {2}, {0, 1});
  CHECK(mesh == make(DeviceType::kCpu, {2}, {0, 1}));
  CHECK_FALSE(mesh == make(DeviceType::kCuda, {2}, {0, 1}));
  CHECK_FALSE(mesh == make(DeviceType::kCpu, {1, 2}, {0, 1}));
  CHECK_FALSE(mesh == make(DeviceType::kCpu, {2}, {1, 0}));
  CHECK_FALSE(mesh == *DeviceMesh::create(DeviceType::kCpu, {2}, {0, 1}, {"data"}));
}

}  // namespace
}  // namespace dtorch
