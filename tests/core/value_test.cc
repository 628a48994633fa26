#include "core/value.h"

#include <limits>
#include <string>

#include "tests/catch.h"

namespace dtorch {
namespace {

TEST_CASE("A value keeps the kind of what it is made from") {
  CHECK(Value(true).as<bool>() != nullptr);
  CHECK(*Value(3).as<std::int64_t>() == 3);
  CHECK(*Value(std::uint8_t{3}).as<std::int64_t>() == 3);
  CHECK(*Value(3L).as<std::int64_t>() == 3);
  CHECK(*Value(3LL).as<std::int64_t>() == 3);
  CHECK(*Value(0.5f).as<double>() == 0.5);
  CHECK(*Value(0.5).as<double>() == 0.5);
  CHECK(*Value("text").as<std::string>() == "text");
  CHECK(Value().isNone());
  CHECK(Value(DType::kInt8).as<DType>() != nullptr);
  CHECK(Value(std::vector<std::int64_t>{1}).as<std::vector<std::int64_t>>()->size() == 1);
  const Value copy = Value(Value(7));
  CHECK(copy.as<std::int64_t>() != nullptr);
}

TEST_CASE("Values are equal when kind and every bit are") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(Value(1) == Value(1));
  CHECK_FALSE(Value(1) == Value(1.0));
  CHECK_FALSE(Value(1) == Value(true));
  CHECK_FALSE(Value(0.0) == Value(-0.0));
  CHECK(Value(nan) == Value(nan));
  CHECK(Value(std::complex<double>(0, nan)) == Value(std::complex<double>(0, nan)));
  CHECK_FALSE(Value(std::complex<double>(0.0, 1)) == Value(std::complex<double>(-0.0, 1)));
  CHECK(Value(std::vector<double>{nan}) == Value(std::vector<double>{nan}));
  CHECK_FALSE(Value(std::vector<double>{0.0}) == Value(std::vector<double>{-0.0}));
  CHECK(Value(std::vector<Value>{1, nan}) == Value(std::vector<Value>{1, nan}));
  CHECK_FALSE(Value(std::vector<std::int64_t>{}) == Value(std::vector<double>{}));
}

TEST_CASE("Values print as they would in Python") {
  CHECK(Value().toString() == "None");
  CHECK(Value(true).toString() == "True");
  CHECK(Value(-3).toString() == "-3");
  CHECK(Value(2.5).toString() == "2.5");
  CHECK(Value("sum").toString() == "'sum'");
  CHECK(Value(DType::kBFloat16).toString() == "bfloat16");
  CHECK(Value(TensorArg{2}).toString() == "Tensor#2");
  CHECK(Value(TensorListArg{{0, std::nullopt}}).toString() == "[Tensor#0, None]");
  CHECK(Value(std::vector<std::int64_t>{1, 2}).toString() == "[1, 2]");
  CHECK(Value(std::vector<bool>{true, false}).toString() == "[True, False]");
  CHECK(Value(std::vector<Value>{1, "x"}).toString() == "[1, 'x']");
  CHECK(Value(LocalRange{{8}, {Placement::shard(0)}, 0, LocalRange::Part::kLength}).toString() ==
        "local length along 0 of [8] [S(0)]");
  CHECK(Value(LocalSizes{{8}, {Placement::shard(0)}}).toString() == "local sizes of [8] [S(0)]");
}

}  // namespace
}  // namespace dtorch
