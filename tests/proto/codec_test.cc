#include "proto/codec.h"

#include <limits>
#include <string>
#include <vector>

#include "tests/catch.h"

namespace dtorch {
namespace {

using Catch::Matchers::Contains;

template <typename Wire, typename Core>
Core roundTrip(const Core& value) {
  Wire wire;
  toWire(value, &wire);
  Wire parsed;
  REQUIRE(parsed.ParseFromString(wire.SerializeAsString()));
  auto back = fromWire(parsed);
  INFO(back.status().message());
  REQUIRE(back.ok());
  return *back;
}

TEST_CASE("Every kind of value survives the wire bit for bit") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<Value> values{
      Value(),
      true,
      false,
      std::int64_t{0},
      std::numeric_limits<std::int64_t>::min(),
      std::numeric_limits<std::int64_t>::max(),
      -0.0,
      nan,
      std::numeric_limits<double>::denorm_min(),
      std::complex<double>(-0.0, nan),
      "text",
      "",
      DType::kFloat8E5M2FNUZ,
      DeviceArg{"cuda:0"},
      Layout::kStrided,
      MemoryFormat::kChannelsLast3d,
      TensorArg{7},
      TensorListArg{{0, std::nullopt, 5}},
      TensorListArg{},
      std::vector<std::int64_t>{},
      std::vector<std::int64_t>{-1, 1LL << 62},
      std::vector<double>{nan, -0.0},
      std::vector<bool>{true, false},
      std::vector<Value>{1, 2.5, std::vector<Value>{Value(), "x"}},
      LocalSizes{{5, 3}, {Placement::shard(0), Placement::partial(ReduceOp::kMax)}},
      LocalRange{{5, 3}, {Placement::shard(1)}, 1, LocalRange::Part::kLength},
  };
  for (const Value& value : values) {
    CAPTURE(value.toString());
    CHECK(roundTrip<v1::Value>(value) == value);
  }
  const Arguments arguments{values, {{"alpha", 2}, {"dtype", DType::kInt8}}};
  CHECK(roundTrip<v1::Arguments>(arguments) == arguments);
}

TEST_CASE("Every dtype has its wire number, and unknown numbers are refused") {
  for (int i = 1; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    CHECK(v1::DType_IsValid(i));
    CHECK(roundTrip<v1::Value>(Value(dtype)) == Value(dtype));
  }
  CHECK_FALSE(v1::DType_IsValid(kDTypeCount));
  for (const int bad : {0, kDTypeCount, 999, -1}) {
    v1::Value value;
    value.set_dtype(static_cast<v1::DType>(bad));
    CHECK(fromWire(value).status().code() == absl::StatusCode::kInvalidArgument);
    v1::TensorMeta meta;
    meta.set_dtype(static_cast<v1::DType>(bad));
    CHECK_THAT(std::string(fromWire(meta).status().message()), Contains(std::to_string(bad)));
  }
}

TEST_CASE("Placements and meshes survive the wire") {
  const Placements placements{Placement::replicate(), Placement::shard(3), Placement::shard(-1), Placement::partial(),
                              Placement::partial(ReduceOp::kProduct)};
  for (const Placement& placement : placements) CHECK(roundTrip<v1::Placement>(placement) == placement);
  google::protobuf::RepeatedPtrField<v1::Placement> wire;
  toWire(placements, &wire);
  CHECK(*fromWire(wire) == placements);
  const DeviceMesh mesh = *DeviceMesh::create(DeviceType::kCuda, {2, 2}, {3, 1, 0, 2}, {"data", "model"});
  v1::DeviceMesh wireMesh;
  toWire(mesh, &wireMesh);
  CHECK(*fromWire(wireMesh) == mesh);
}

TEST_CASE("What cannot be is refused, and the message says which field") {
  v1::Placement placement;
  CHECK_FALSE(fromWire(placement).ok());
  placement.set_partial(static_cast<v1::ReduceOp>(999));
  CHECK_THAT(std::string(fromWire(placement).status().message()), Contains("999"));
  placement.set_partial(v1::REDUCE_OP_UNSPECIFIED);
  CHECK_FALSE(fromWire(placement).ok());

  v1::Value value;
  CHECK_FALSE(fromWire(value).ok());
  value.set_layout(static_cast<v1::Layout>(999));
  CHECK_FALSE(fromWire(value).ok());
  value.set_memory_format(static_cast<v1::MemoryFormat>(-3));
  CHECK_FALSE(fromWire(value).ok());
  value.mutable_local_sizes()->add_placements();
  CHECK_FALSE(fromWire(value).ok());

  v1::DeviceMesh mesh;
  CHECK_FALSE(fromWire(mesh).ok());
  mesh.set_device_type(v1::DEVICE_TYPE_CPU);
  mesh.add_shape(1LL << 62);
  mesh.add_shape(1LL << 62);
  mesh.add_ranks(0);
  CHECK_FALSE(fromWire(mesh).ok());

  v1::TensorMeta meta;
  meta.set_dtype(v1::DTYPE_FLOAT32);
  meta.add_shape(-1);
  CHECK_FALSE(fromWire(meta).ok());
  meta.set_shape(0, 1LL << 62);
  CHECK_FALSE(fromWire(meta).ok());
}

TEST_CASE("Lists in lists are followed to a depth, and no further") {
  v1::Value value;
  v1::Value* inner = &value;
  for (int depth = 0; depth < 8; ++depth) inner = inner->mutable_values()->add_values();
  inner->set_integer(1);
  CHECK(fromWire(value).ok());
  for (int depth = 0; depth < 80; ++depth) inner = inner->mutable_values()->add_values();
  CHECK(fromWire(value).status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("A tensor's strides are kept when there is one for each dimension, else they are contiguous") {
  const TensorMeta strided{DType::kFloat32, {2, 3}, {1, 2}};
  v1::TensorMeta wire;
  toWire(strided, &wire);
  CHECK(*fromWire(wire) == strided);
  wire.clear_strides();
  CHECK(fromWire(wire)->strides == std::vector<std::int64_t>{3, 1});
  wire.add_strides(7);
  CHECK(fromWire(wire)->strides == std::vector<std::int64_t>{3, 1});
}

TEST_CASE("A status keeps code and text, cut and made printable") {
  v1::Status wire;
  toWire(absl::NotFoundError("no such thing"), &wire);
  CHECK(fromWire(wire) == absl::NotFoundError("no such thing"));
  toWire(absl::OkStatus(), &wire);
  CHECK(fromWire(wire).ok());
  toWire(absl::InternalError(std::string(100'000, 'x')), &wire);
  CHECK(wire.message().size() == 4096);
  for (const int bad : {-1, 17, 999}) {
    wire.set_code(bad);
    CHECK(fromWire(wire).code() == absl::StatusCode::kUnknown);
  }
}

TEST_CASE("printable() is UTF-8 whatever it is given, and cuts between characters") {
  CHECK(printable("plain", 100) == "plain");
  CHECK(printable("Zoë", 100) == "Zoë");
  CHECK(printable("Zoë", 3) == "Zo");
  CHECK(printable("\xFF\xFE", 100) == "??");
  CHECK(printable("a\xC3", 100) == "a?");
  CHECK(printable("\xE2\x82", 100) == "??");
  CHECK(printable("€", 2).empty());
  CHECK(printable("😀", 4) == "😀");
  CHECK(printable(std::string("a\0b", 3), 100) == std::string("a\0b", 3));
}

TEST_CASE("printable() lets no overlong form, surrogate or number past Unicode's end through") {
  // These are not UTF-8 either: protobuf refuses them in a string field.
  for (const char* bad : {"\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xF0\x80\x80\x80"}) {
    const std::string text = printable(bad, 100);
    CHECK(text == std::string(std::string(bad).size(), '?'));
  }
}

}  // namespace
}  // namespace dtorch
