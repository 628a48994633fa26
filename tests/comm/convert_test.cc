// Conversions of placements against the answer of one process: random shapes, meshes and placements.
#include "comm/placement/convert.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/group/reduce_kernels.h"
#include "comm/placement/move.h"
#include "core/conversion.h"
#include "tests/catch.h"
#include "tests/comm/ranks.h"

namespace dtorch::testing {
namespace {

struct Case {
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> mesh;
  Placements from;
  Placements to;
  std::string toString() const {
    return absl::StrCat("shape [", absl::StrJoin(shape, ", "), "] mesh [", absl::StrJoin(mesh, ", "), "] ",
                        dtorch::toString(from), " -> ", dtorch::toString(to));
  }
};

/// Part of `tensor` at `coordinate` under the Shards of `placements`, by torch.chunk alone.
at::Tensor chunkAt(at::Tensor tensor, const std::vector<std::int64_t>& mesh, const Placements& placements,
                   const std::vector<std::int64_t>& coordinate) {
  for (std::size_t m = 0; m < mesh.size(); ++m) {
    if (!placements[m].isShard()) continue;
    const auto dim = placements[m].dim();
    const std::vector<at::Tensor> chunks =
        tensor.size(dim) == 0 ? std::vector<at::Tensor>{} : tensor.chunk(mesh[m], dim);
    const auto i = static_cast<std::size_t>(coordinate[m]);
    tensor = i < chunks.size() ? chunks[i] : tensor.narrow(dim, 0, 0);
  }
  return tensor;
}

at::Tensor combine(const std::vector<at::Tensor>& parts, ReduceOp op) {
  const at::Tensor all = at::stack(parts);
  switch (op) {
    case ReduceOp::kSum:
      return all.sum(0);
    case ReduceOp::kAvg:
      return all.mean(0);
    case ReduceOp::kProduct:
      return all.prod(0);
    case ReduceOp::kMin:
      return all.amin(0);
    case ReduceOp::kMax:
      return all.amax(0);
  }
  return all;
}

/// The value of a tensor whose part at each coordinate of the Partial mesh dimensions `part` gives, innermost first.
at::Tensor valueOf(const std::vector<std::int64_t>& mesh, const Placements& placements,
                   std::vector<std::int64_t> coordinate, std::size_t m,
                   const std::function<at::Tensor(const std::vector<std::int64_t>&)>& part) {
  if (m == mesh.size()) return part(coordinate);
  if (!placements[m].isPartial()) return valueOf(mesh, placements, coordinate, m + 1, part);
  std::vector<at::Tensor> parts;
  for (std::int64_t i = 0; i < mesh[m]; ++i) {
    coordinate[m] = i;
    parts.push_back(valueOf(mesh, placements, coordinate, m + 1, part));
  }
  return combine(parts, placements[m].reduceOp());
}

at::Tensor partAt(const Case& c, const std::vector<std::int64_t>& coordinate, std::int64_t seed) {
  std::int64_t salt = seed;
  for (std::size_t m = 0; m < c.mesh.size(); ++m) salt = salt * 31 + (c.from[m].isPartial() ? coordinate[m] : 0);
  const at::Tensor order = at::arange(c10::multiply_integers(c.shape), at::kDouble).reshape(c.shape);
  // Whole numbers of either sign, small enough for exact products, different for neighbours.
  return (order * 7 + static_cast<double>(salt % 1013)).remainder(5) - 2 + order.remainder(97) * 0.125;
}

Case randomCase(std::mt19937_64& random, int ranks) {
  const auto pick = [&random](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  Case c;
  std::int64_t left = ranks;
  const std::int64_t meshDims = pick(1, 3);
  for (std::int64_t m = 0; m + 1 < meshDims; ++m) {
    std::vector<std::int64_t> divisors;
    for (std::int64_t d = 1; d <= left; ++d) {
      if (left % d == 0) divisors.push_back(d);
    }
    c.mesh.push_back(divisors[static_cast<std::size_t>(pick(0, static_cast<std::int64_t>(divisors.size()) - 1))]);
    left /= c.mesh.back();
  }
  c.mesh.push_back(left);
  const std::int64_t dims = pick(0, 3);
  for (std::int64_t d = 0; d < dims; ++d) c.shape.push_back(pick(0, 9) == 0 ? 0 : pick(1, 9));
  // Now and then more than fits inline, so that chunks are used too.
  if (dims > 0 && pick(0, 19) == 0) c.shape[0] = pick(5000, 9000);
  const auto placement = [&] {
    const std::int64_t kind = pick(0, 9);
    if (kind < 3 || (kind < 8 && dims == 0)) return Placement::replicate();
    if (kind < 8) return Placement::shard(static_cast<int>(pick(0, dims - 1)));
    return Placement::partial(static_cast<ReduceOp>(pick(1, 5)));
  };
  for (std::size_t m = 0; m < c.mesh.size(); ++m) {
    c.from.push_back(placement());
    c.to.push_back(placement());
  }
  return c;
}

std::array<at::Tensor, 64> results;  // one slot a rank thread, read between barriers

void runCase(RankContext& context, const Case& c, const DeviceMesh& mesh, std::int64_t seed) {
  const std::vector<std::int64_t> me = *mesh.coordinate(context.rank);
  const std::vector<std::int64_t> zero(c.mesh.size(), 0);
  const at::Tensor local = chunkAt(partAt(c, me, seed), c.mesh, c.from, me).contiguous();
  const at::Tensor kept = local.clone();
  const ConvertContext how{mesh,
                           me,
                           [&](const std::vector<Rank>& ranks) { return context.manager.group(ranks); },
                           {static_cast<std::uint64_t>(seed), "convert"}};
  const auto result = convert(local, c.shape, c.from, c.to, how);
  if (!result.ok()) context.check(false, absl::StrCat(c.toString(), ": ", result.status().ToString()));
  const auto self = static_cast<std::size_t>(context.rank);
  results[self] = result.ok() ? *result : at::Tensor();
  if (!context.world().barrier({}).ok()) return context.check(false, "barrier");
  const at::Tensor whole = valueOf(c.mesh, c.from, zero, 0, [&](const auto& at) { return partAt(c, at, seed); });
  const at::Tensor wanted = chunkAt(whole, c.mesh, c.to, me);
  const at::Tensor got = valueOf(c.mesh, c.to, me, 0, [&](const auto& at) {
    std::size_t flat = 0;
    for (std::size_t m = 0; m < at.size(); ++m)
      flat = flat * static_cast<std::size_t>(c.mesh[m]) + static_cast<std::size_t>(at[m]);
    return results[static_cast<std::size_t>(mesh.ranks()[flat])];
  });
  context.check(got.sizes() == wanted.sizes() && at::allclose(got, wanted, 1e-12, 1e-12),
                absl::StrCat(c.toString(), " differs"));
  context.check(!result.ok() || result->is_contiguous(), absl::StrCat(c.toString(), " is not contiguous"));
  context.check(!result.ok() || c.from == c.to || !result->is_alias_of(local),
                absl::StrCat(c.toString(), " aliases its input"));
  context.check(at::equal(local, kept), absl::StrCat(c.toString(), " changed its input"));
  if (!context.world().barrier({}).ok()) context.check(false, "barrier");
}

/// The argument is "seed cases".
void randomConversions(RankContext& context) {
  std::uint64_t seed = 0;
  int cases = 0;
  std::sscanf(context.argument.c_str(), "%lu %d", &seed, &cases);
  std::mt19937_64 random(seed + static_cast<std::uint64_t>(context.size));
  for (int i = 0; i < cases && context.failures.empty(); ++i) {
    const Case c = randomCase(random, context.size);
    std::vector<Rank> ranks = context.all();
    if (i % 2 == 1) std::reverse(ranks.begin(), ranks.end());
    runCase(context, c, *DeviceMesh::create(DeviceType::kCpu, c.mesh, ranks), i + 1);
  }
}
const RankRole kRandomConversions("random conversions", randomConversions);

/// A mesh of some of `ranks`, in any order and of up to two dimensions.
DeviceMesh randomMesh(std::mt19937_64& random, std::vector<Rank> ranks) {
  std::shuffle(ranks.begin(), ranks.end(), random);
  ranks.resize(1 + random() % ranks.size());
  std::vector<std::int64_t> shape = {static_cast<std::int64_t>(ranks.size())};
  if (ranks.size() % 2 == 0 && random() % 2 == 0) shape = {2, static_cast<std::int64_t>(ranks.size() / 2)};
  return *DeviceMesh::create(DeviceType::kCpu, shape, ranks);
}

void runMove(RankContext& context, const Move& move, std::int64_t seed) {
  const Case from{move.shape, move.fromMesh.shape(), move.from, {}};
  const std::string what =
      absl::StrCat("shape [", absl::StrJoin(move.shape, ", "), "] ", move.fromMesh.toString(), " ",
                   dtorch::toString(move.from), " -> ", move.toMesh.toString(), " ", dtorch::toString(move.to));
  const auto source = move.fromMesh.coordinate(context.rank);
  const auto target = move.toMesh.coordinate(context.rank);
  at::Tensor local;
  if (source.ok()) local = chunkAt(partAt(from, *source, seed), from.mesh, from.from, *source).contiguous();
  const at::Tensor kept = local.defined() ? local.clone() : local;
  absl::StatusOr<at::Tensor> result = at::Tensor();
  if (source.ok() || target.ok()) {
    result = moveBetween(local, move,
                         {context.rank,
                          [&](const std::vector<Rank>& ranks) { return context.manager.group(ranks); },
                          {static_cast<std::uint64_t>(seed), "move"}});
  }
  context.check(result.ok(), absl::StrCat(what, ": ", result.status().ToString()));
  results[static_cast<std::size_t>(context.rank)] = result.ok() ? *result : at::Tensor();
  if (!context.world().barrier({}).ok()) return context.check(false, "barrier");
  context.check(!local.defined() || at::equal(local, kept), absl::StrCat(what, " changed its input"));
  context.check(!result.ok() || result->defined() == target.ok(), absl::StrCat(what, " gives parts to others"));
  if (target.ok() && context.failures.empty()) {
    const std::vector<std::int64_t> zero(from.mesh.size(), 0);
    const at::Tensor whole =
        valueOf(from.mesh, from.from, zero, 0, [&](const auto& at) { return partAt(from, at, seed); });
    const at::Tensor wanted = chunkAt(whole, move.toMesh.shape(), move.to, *target);
    const at::Tensor got = valueOf(move.toMesh.shape(), move.to, *target, 0, [&](const auto& at) {
      std::size_t flat = 0;
      for (std::size_t m = 0; m < at.size(); ++m) {
        flat = flat * static_cast<std::size_t>(move.toMesh.shape()[m]) + static_cast<std::size_t>(at[m]);
      }
      return results[static_cast<std::size_t>(move.toMesh.ranks()[flat])];
    });
    context.check(got.sizes() == wanted.sizes() && at::allclose(got, wanted, 1e-12, 1e-12),
                  absl::StrCat(what, " differs"));
    context.check(result->is_contiguous() && !(local.defined() && result->is_alias_of(local)),
                  absl::StrCat(what, " is no contiguous tensor of its own"));
  }
  if (!context.world().barrier({}).ok()) context.check(false, "barrier");
}

/// The argument is "seed cases".
void randomMoves(RankContext& context) {
  std::uint64_t seed = 0;
  int cases = 0;
  std::sscanf(context.argument.c_str(), "%lu %d", &seed, &cases);
  std::mt19937_64 random(seed + 1000 + static_cast<std::uint64_t>(context.size));
  for (int i = 0; i < cases && context.failures.empty(); ++i) {
    std::vector<std::int64_t> shape;
    for (std::uint64_t d = random() % 4; d > 0; --d) shape.push_back(static_cast<std::int64_t>(random() % 9));
    if (!shape.empty() && random() % 20 == 0) shape[0] = 7000;
    const DeviceMesh from = randomMesh(random, context.all());
    const DeviceMesh to = randomMesh(random, context.all());
    const auto placements = [&](const DeviceMesh& mesh) {
      Placements all;
      for (int m = 0; m < mesh.dims(); ++m) {
        const auto kind = random() % 6;
        if (kind < 3 && !shape.empty())
          all.push_back(Placement::shard(static_cast<int>(random() % shape.size())));
        else if (kind == 3)
          all.push_back(Placement::partial(static_cast<ReduceOp>(1 + random() % 5)));
        else
          all.push_back(Placement::replicate());
      }
      return all;
    };
    const Placements source = placements(from);
    runMove(context, {shape, DType::kFloat64, from, source, to, placements(to)}, i + 1);
  }
}
const RankRole kRandomMoves("random moves", randomMoves);

/// A client's tensor, which rank 1 holds, goes to all ranks and comes back; a rank whose part is wrong fails all.
void scatterAndGather(RankContext& context) {
  const DeviceMesh one = *DeviceMesh::create(DeviceType::kCpu, {1}, {1});
  const DeviceMesh all = *DeviceMesh::create(DeviceType::kCpu, {context.size}, context.all());
  const MoveContext how{
      context.rank, [&](const std::vector<Rank>& ranks) { return context.manager.group(ranks); }, {5, "x"}};
  const at::Tensor value = at::arange(70, at::kFloat).reshape({7, 10});
  const Move scatter{{7, 10}, DType::kFloat32, one, allReplicate(1), all, {Placement::shard(0)}};
  const Move gather{{7, 10}, DType::kFloat32, all, {Placement::shard(0)}, one, allReplicate(1)};
  const auto part = moveBetween(context.rank == 1 ? value : at::Tensor(), scatter, how);
  context.check(part.ok() && at::equal(*part, chunkAt(value, {context.size}, {Placement::shard(0)}, {context.rank})),
                "scatter");
  const auto whole = moveBetween(*part, gather, how);
  context.check(whole.ok() && whole->defined() == (context.rank == 1), "gather");
  context.check(context.rank != 1 || at::equal(*whole, value), "what was scattered is not gathered");
  const at::Tensor wrong = context.rank == 2 ? part->to(at::kInt) : *part;
  const absl::Status status = moveBetween(wrong, gather, how).status();
  context.check(absl::IsInvalidArgument(status) && absl::StrContains(status.message(), "rank 2's part") &&
                    absl::StrContains(status.message(), "and is Int"),
                status.ToString());
  context.check(moveBetween(*part, gather, how).ok(), "the groups are unusable afterwards");
  Move nothing = gather;
  nothing.dtype = DType::kUnspecified;
  context.check(absl::IsInvalidArgument(moveBetween(*part, nothing, how).status()), "no dtype");
}
const RankRole kScatterAndGather("scatter and gather", scatterAndGather);

/// pytorch#103306, pytorch#115310, pytorch#173041: uneven shards come back whole and with the strides of a whole
/// tensor.
void uneven(RankContext& context) {
  const auto group = [&](const std::vector<Rank>& ranks) { return context.manager.group(ranks); };
  const DeviceMesh mesh = *DeviceMesh::create(DeviceType::kCpu, {context.size}, context.all());
  const ConvertContext how{mesh, {context.rank}, group, {}};
  // No random numbers: the ranks may be threads, which share LibTorch's one generator.
  const at::Tensor value = at::arange(50.0).view({5, 10});
  auto sharded = convert(value, {5, 10}, {Placement::replicate()}, {Placement::shard(0)}, how);
  const std::array<std::int64_t, 4> rows = {2, 2, 1, 0};
  context.check(sharded.ok() && sharded->size(0) == rows[static_cast<std::size_t>(context.rank)], "rows of a shard");
  auto back = convert(*sharded, {5, 10}, {Placement::shard(0)}, {Placement::replicate()}, how);
  context.check(back.ok() && at::equal(*back, value), "shards do not come back whole");
  auto columns = convert(at::zeros({4, 31, 10}), {4, 31, 10}, {Placement::replicate()}, {Placement::shard(1)}, how);
  auto whole = convert(*columns, {4, 31, 10}, {Placement::shard(1)}, {Placement::replicate()}, how);
  context.check(whole.ok() && whole->strides() == at::IntArrayRef({310, 10, 1}) && whole->view({-1}).numel() == 1240,
                "strides");
  auto parts = convert(at::arange(5.0) + context.rank, {5}, {Placement::partial()}, {Placement::shard(0)}, how);
  const at::Tensor sum = chunkAt(at::arange(5.0) * context.size + context.size * (context.size - 1) / 2.0,
                                 {context.size}, {Placement::shard(0)}, {context.rank});
  context.check(parts.ok() && at::equal(*parts, sum), "partial to uneven shards");
}
const RankRole kUneven("uneven", uneven);

/// The same faults with two ranks, whose values are written out; pytorch#118836: a shard has the strides of its own
/// shape.
void unevenPairs(RankContext& context) {
  const auto group = [&](const std::vector<Rank>& ranks) { return context.manager.group(ranks); };
  const DeviceMesh mesh = *DeviceMesh::create(DeviceType::kCpu, {2}, {0, 1});
  const ConvertContext how{mesh, {context.rank}, group, {}};
  const Placement r = Placement::replicate();
  const bool first = context.rank == 0;
  const auto sums = convert(at::arange(5.0) + context.rank, {5}, {Placement::partial()}, {Placement::shard(0)}, how);
  const at::Tensor wanted = first ? at::tensor({1.0F, 3.0F, 5.0F}) : at::tensor({7.0F, 9.0F});
  context.check(sums.ok() && at::equal(*sums, wanted), "partial sums to uneven shards");

  const at::Tensor whole = at::arange(1240.0).view({4, 31, 10});
  const auto rows = convert(whole, {4, 31, 10}, {r}, {Placement::shard(1)}, how);
  context.check(rows.ok() && rows->sizes() == at::IntArrayRef({4, first ? 16 : 15, 10}), "shapes of shards");
  const auto back = convert(*rows, {4, 31, 10}, {Placement::shard(1)}, {r}, how);
  context.check(back.ok() && back->strides() == at::IntArrayRef({310, 10, 1}) && back->is_contiguous(), "strides");
  const at::Tensor weight = at::arange(30.0).view({3, 10});
  context.check(at::equal(back->view({-1}), at::arange(1240.0)) &&
                    at::equal(at::linear(*back, weight), at::linear(whole, weight)),
                "what is made of a gathered tensor");
  const auto columns = convert(at::arange(27.0).view({3, 9}), {3, 9}, {r}, {Placement::shard(1)}, how);
  const std::vector<std::int64_t> strides = {first ? 5 : 4, 1};
  context.check(columns.ok() && columns->strides() == at::IntArrayRef(strides), "strides of a shard");
}
const RankRole kUnevenPairs("uneven pairs", unevenPairs);

/// pytorch#117728, pytorch#150928: shards without elements, and one element for four ranks.
void fewElements(RankContext& context) {
  const auto group = [&](const std::vector<Rank>& ranks) { return context.manager.group(ranks); };
  const DeviceMesh mesh = *DeviceMesh::create(DeviceType::kCpu, {context.size}, context.all());
  const ConvertContext how{mesh, {context.rank}, group, {}};
  const Placement r = Placement::replicate();
  const auto shard = convert(at::tensor({5.0}), {1}, {r}, {Placement::shard(0)}, how);
  context.check(shard.ok() && shard->numel() == (context.rank == 0 ? 1 : 0), "the shard of one element");
  const auto whole = convert(*shard, {1}, {Placement::shard(0)}, {r}, how);
  context.check(whole.ok() && at::equal(*whole, at::tensor({5.0})), "one element");
  for (const Placement& from :
       {r, Placement::shard(0), Placement::shard(1), Placement::shard(2), Placement::partial()}) {
    const at::Tensor nothing = at::empty({1, 0, 2});
    const at::Tensor local = chunkAt(nothing, {context.size}, {from}, {context.rank}).contiguous();
    const auto empty = convert(local, {1, 0, 2}, {from}, {r}, how);
    context.check(empty.ok() && empty->sizes() == nothing.sizes(), absl::StrCat("no element, from ", from.toString()));
  }
}
const RankRole kFewElements("few elements", fewElements);

/// Only the outer of two mesh dimensions that shard one tensor dimension changes: the order of rows must stay.
void nestedShards(RankContext& context) {
  const DeviceMesh mesh = *DeviceMesh::create(DeviceType::kCpu, {2, 2}, context.all());
  const Placement r = Placement::replicate();
  const Placement s0 = Placement::shard(0);
  const Placement s1 = Placement::shard(1);
  const std::vector<std::pair<Placements, Placements>> changes = {
      {{s0, s0}, {r, s0}}, {{s0, r}, {r, s0}}, {{s0, s0}, {s1, s0}}, {{r, s0}, {s0, s0}}, {{s1, s0}, {s0, s0}}};
  std::int64_t seed = 0;
  for (const auto& [from, to] : changes) {
    for (const std::int64_t rows : {8, 7, 3}) runCase(context, {{rows, 5}, {2, 2}, from, to}, mesh, ++seed);
  }
}
const RankRole kNestedShards("nested shards", nestedShards);

/// A rank without input fails the conversion on every rank that exchanges data with it, and all groups stay usable.
void failedInput(RankContext& context) {
  const DeviceMesh mesh = *DeviceMesh::create(DeviceType::kCpu, {2, 2}, context.all());
  const std::vector<std::int64_t> me = *mesh.coordinate(context.rank);
  const ConvertContext how{
      mesh, me, [&](const std::vector<Rank>& ranks) { return context.manager.group(ranks); }, {6, "x"}};
  const Placements from = {Placement::partial(), Placement::shard(0)};
  const std::vector<std::int64_t> shape = {4, 3};
  const absl::Status status = context.rank == 3
                                  ? failConversion(absl::InternalError("no kernel"), shape, from, allReplicate(2), how)
                                  : convert(at::ones({2, 3}), shape, from, allReplicate(2), how).status();
  context.check(absl::IsInternal(status) && status.message() == "no kernel", status.ToString());
  // A part of a wrong shape is found before it moves.
  const absl::Status wrong =
      convert(at::ones({context.rank == 2 ? 1 : 2, 3}), shape, from, allReplicate(2), how).status();
  const bool named =
      absl::StrContains(wrong.message(), "rank 2's part") && absl::StrContains(wrong.message(), "[1, 3]");
  context.check(absl::IsInvalidArgument(wrong) && named, wrong.ToString());
  auto good = convert(at::ones({2, 3}), shape, from, allReplicate(2), how);
  context.check(good.ok() && at::equal(*good, at::full({4, 3}, 2.0)), "the groups are unusable afterwards");
}
const RankRole kFailedInput("failed input", failedInput);

/// New each time, unless DTORCH_TEST_SEED says otherwise; printed.
std::uint64_t chosenSeed() {
  const char* given = std::getenv("DTORCH_TEST_SEED");
  const std::uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  std::cout << "DTORCH_TEST_SEED=" << seed << '\n';
  return seed;
}

}  // namespace

TEST_CASE("random conversions equal the answer of one process", "[placement]") {
  const std::uint64_t seed = chosenSeed();
  for (const int size : {1, 2, 3, 4, 6, 8, 12}) {
    expectRanks(Mode::kThreads, size, "random conversions", absl::StrCat(seed, " ", 720));
  }
}

TEST_CASE("random moves between meshes equal the answer of one process", "[placement]") {
  const std::uint64_t seed = chosenSeed();
  for (const int size : {1, 2, 3, 5, 8})
    expectRanks(Mode::kThreads, size, "random moves", absl::StrCat(seed, " ", 250));
}

TEST_CASE("a tensor of one rank is scattered and gathered", "[placement]") {
  expectRanks(Mode::kThreads, 4, "scatter and gather");
  expectRanks(Mode::kProcesses, 3, "scatter and gather");
}

TEST_CASE("uneven shards", "[placement]") {
  expectRanks(Mode::kThreads, 4, "uneven");
  expectRanks(Mode::kProcesses, 4, "uneven");
  expectRanks(Mode::kThreads, 2, "uneven pairs");
  for (const char* memory : {"", "shared"}) expectRanks(Mode::kProcesses, 2, "uneven pairs", memory);
}

TEST_CASE("tensors of one element or none", "[placement]") {
  for (const int size : {1, 2, 4}) expectRanks(Mode::kThreads, size, "few elements");
  expectRanks(Mode::kProcesses, 4, "few elements");
}

TEST_CASE("rows keep their order when an outer mesh dimension changes", "[placement]") {
  expectRanks(Mode::kThreads, 4, "nested shards");
}

TEST_CASE("a conversion whose input failed fails on all ranks that need it", "[placement]") {
  expectRanks(Mode::kThreads, 4, "failed input");
}

TEST_CASE("an outer mesh dimension changes only while no inner one shards the same tensor dimension", "[placement]") {
  const DeviceMesh mesh = *DeviceMesh::create(DeviceType::kCpu, {2, 2}, {0, 1, 2, 3});
  const Placement r = Placement::replicate();
  const Placement s = Placement::shard(0);
  const auto steps = planConversion({8, 8}, mesh, {s, s}, {r, s});
  REQUIRE(steps.ok());
  REQUIRE(steps->size() == 3);
  CHECK((*steps)[0].meshDim == 1);
  CHECK((*steps)[1].meshDim == 0);
  CHECK((*steps)[2].meshDim == 1);
  CHECK(planConversion({8, 8}, mesh, {s, s}, {s, s})->empty());
  CHECK(absl::IsInvalidArgument(planConversion({8}, mesh, {s}, {s, s}).status()));
  CHECK(absl::IsInvalidArgument(planConversion({8}, mesh, {r, r}, {Placement::shard(1), r}).status()));
}

TEST_CASE("a plan moves the fewest bytes", "[placement]") {
  const DeviceMesh mesh = *DeviceMesh::create(DeviceType::kCpu, {2, 4}, {0, 1, 2, 3, 4, 5, 6, 7});
  // Slicing before the gather moves a quarter of what gathering first would.
  const auto steps = planConversion({1024, 1024}, mesh, {Placement::shard(0), Placement::replicate()},
                                    {Placement::replicate(), Placement::shard(1)});
  REQUIRE(steps.ok());
  REQUIRE(steps->size() == 2);
  CHECK((*steps)[0].to == Placement::shard(1));
  CHECK((*steps)[1].to == Placement::replicate());
}

TEST_CASE("a Partial is reducible where a kernel reduces it", "[placement]") {
  constexpr std::pair<ReduceOp, Reduction> kOps[] = {{ReduceOp::kSum, Reduction::kSum},
                                                     {ReduceOp::kAvg, Reduction::kAvg},
                                                     {ReduceOp::kProduct, Reduction::kProduct},
                                                     {ReduceOp::kMin, Reduction::kMin},
                                                     {ReduceOp::kMax, Reduction::kMax}};
  for (int number = 1; number < kDTypeCount; ++number) {
    const auto dtype = static_cast<DType>(number);
    for (const auto& [op, reduction] : kOps) {
      INFO(name(dtype) << " " << name(op));
      CHECK(isReducible(dtype, op) == reduceKernel(dtype, reduction).ok());
      CHECK(checkReducible({Placement::shard(0), Placement::partial(op)}, dtype).ok() == isReducible(dtype, op));
    }
  }
}

}  // namespace dtorch::testing
