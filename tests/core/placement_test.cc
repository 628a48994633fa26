#include "core/placement.h"

#include "tests/catch.h"

namespace dtorch {
namespace {

TEST_CASE("A placement reads what it prints") {
  for (const Placement& placement :
       {Placement::replicate(), Placement::shard(0), Placement::shard(12), Placement::shard(-1), Placement::partial(),
        Placement::partial(ReduceOp::kAvg), Placement::partial(ReduceOp::kProduct), Placement::partial(ReduceOp::kMin),
        Placement::partial(ReduceOp::kMax)}) {
    const auto parsed = Placement::parse(placement.toString());
    REQUIRE(parsed.ok());
    CHECK(*parsed == placement);
  }
  CHECK(toString({Placement::shard(0), Placement::replicate()}) == "[S(0), R]");
  CHECK(toString(Placements{}) == "[]");
}

TEST_CASE("What is no placement is refused and quoted") {
  for (const char* text :
       {"", "r", "S", "S()", "S(x)", "S(1", "S(99999999999)", "P", "P()", "P(mean)", "R ", "P(sum))"}) {
    const auto parsed = Placement::parse(text);
    CAPTURE(text);
    REQUIRE_FALSE(parsed.ok());
    CHECK(std::string(parsed.status().message()).find(std::string("'") + text + "'") != std::string::npos);
  }
}

TEST_CASE("Placements that differ compare different; what a kind does not use does not count") {
  CHECK(Placement() == Placement::replicate());
  CHECK_FALSE(Placement::shard(0) == Placement::shard(1));
  CHECK_FALSE(Placement::shard(0) == Placement::replicate());
  CHECK_FALSE(Placement::partial(ReduceOp::kSum) == Placement::partial(ReduceOp::kMax));
  CHECK(Placement::shard(2).isShard(2));
  CHECK_FALSE(Placement::shard(2).isShard(1));
  CHECK_FALSE(Placement::partial().isShard(0));
  CHECK(isAllReplicate(allReplicate(3)));
  CHECK(allReplicate(3).size() == 3);
  CHECK_FALSE(isAllReplicate({Placement::replicate(), Placement::shard(0)}));
}

TEST_CASE("Negative dims are counted from the end, and dims are checked") {
  CHECK(*normalize({Placement::shard(-1), Placement::replicate()}, 2, 3) ==
        Placements{Placement::shard(2), Placement::replicate()});
  CHECK(*normalize({Placement::partial()}, 1, 0) == Placements{Placement::partial()});
  for (const int dim : {3, -4}) CHECK_FALSE(normalize({Placement::shard(dim)}, 1, 3).ok());
  CHECK_FALSE(normalize({Placement::shard(0)}, 1, 0).ok());
  CHECK_FALSE(normalize({}, 1, 3).ok());
  CHECK_FALSE(normalize({Placement::replicate(), Placement::replicate()}, 1, 3).ok());
}

}  // namespace
}  // namespace dtorch
