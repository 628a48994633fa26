#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "comm/group/cpu_thread_group.h"
#include "tests/catch.h"
#include "tests/comm/ranks.h"

namespace dtorch::testing {
namespace {

/// What rank r gives in a test: every rank can make every rank's, and so the answer, by itself.
at::Tensor inputOf(int rank, at::IntArrayRef shape) {
  return at::arange(at::prod(at::tensor(shape)).item<std::int64_t>(), at::kDouble).reshape(shape) * (rank + 1) + rank;
}

/// Sizes around the inline limit, and chunks that end unevenly.
std::vector<std::int64_t> rowsFor(int ranks) { return {1, 7, 4000, 9001, 300001 / (ranks * ranks)}; }

void collectives(RankContext& context) {
  ThreadGroup& group = context.world();
  const int n = context.size;
  const auto self = static_cast<std::size_t>(context.rank);
  // A byte more than the ranks' slices of whole cache lines hold.
  const auto odd = group.allReduce(at::full({n * 65536 + 1}, context.rank + 1, at::kByte), ReduceOp::kSum, {});
  context.check(odd.ok() && at::equal(*odd, at::full_like(*odd, n * (n + 1) / 2)),
                "all_reduce of an odd number of bytes");
  for (const std::int64_t rows : rowsFor(n)) {
    const CallTag tag{static_cast<std::uint64_t>(rows), "test"};
    std::vector<at::Tensor> inputs;
    for (int r = 0; r < n; ++r) inputs.push_back(inputOf(r, {rows}));
    const at::Tensor kept = inputs[self].clone();
    const at::Tensor sum = at::stack(inputs).sum(0);
    const auto same = [&](const absl::StatusOr<at::Tensor>& got, const at::Tensor& wanted, const char* what) {
      if (!got.ok()) return context.check(false, absl::StrCat(what, " ", rows, ": ", got.status().ToString()));
      context.check(got->sizes() == wanted.sizes() && at::equal(*got, wanted),
                    absl::StrCat(what, " differs, rows ", rows));
      context.check(got->is_contiguous() && !got->is_alias_of(inputs[self]), absl::StrCat(what, " is no new tensor"));
    };
    same(group.allReduce(inputs[self], ReduceOp::kSum, tag), sum, "all_reduce");
    same(group.broadcast(inputs[self], n - 1, tag), inputs.back(), "broadcast");

    // Uneven, one rank with nothing, and along an inner dimension too.
    std::vector<std::int64_t> lengths;
    std::vector<at::Tensor> uneven;
    std::vector<at::Tensor> inner;
    for (int r = 0; r < n; ++r) {
      lengths.push_back(r == 1 ? 0 : rows + r);
      uneven.push_back(inputOf(r, {lengths.back(), 2}));
      inner.push_back(inputOf(r, {3, lengths.back(), 2}));
    }
    same(group.allGather(uneven[self], 0, lengths, tag), at::cat(uneven, 0), "all_gather");
    same(group.allGather(inner[self], 1, lengths, tag), at::cat(inner, 1), "all_gather inside");

    const std::int64_t total = at::tensor(lengths).sum().item<std::int64_t>();
    std::vector<at::Tensor> wide;
    for (int r = 0; r < n; ++r) wide.push_back(inputOf(r, {3, total}));
    const at::Tensor reduced = at::stack(wide).sum(0);
    same(group.reduceScatter(wide[self], ReduceOp::kSum, 1, lengths, tag),
         reduced.split_with_sizes(lengths, 1)[self].contiguous(), "reduce_scatter");

    // Rank i sends rank j i + 2 * j rows of its own.
    std::vector<at::Tensor> sends;
    std::vector<std::vector<std::int64_t>> shapes;
    for (int r = 0; r < n; ++r) {
      sends.push_back(inputOf(context.rank, {rows + context.rank + 2 * r}));
      shapes.push_back({rows + r + 2 * context.rank});
    }
    auto received = group.allToAll(sends, shapes, tag);
    context.check(received.ok(), absl::StrCat("all_to_all: ", received.status().ToString()));
    for (int r = 0; received.ok() && r < n; ++r) {
      context.check(
          at::equal((*received)[static_cast<std::size_t>(r)], inputOf(r, shapes[static_cast<std::size_t>(r)])),
          "all_to_all differs");
    }
    context.check(group.barrier(tag).ok(), "barrier");
    context.check(at::equal(inputs[self], kept), "an input was changed");
  }
}
const RankRole kCollectives("collectives", collectives);

const std::vector<at::ScalarType> kReducible = {at::kBool,   at::kByte,        at::kChar,         at::kUInt16,
                                                at::kShort,  at::kUInt32,      at::kInt,          at::kUInt64,
                                                at::kLong,   at::kHalf,        at::kBFloat16,     at::kFloat,
                                                at::kDouble, at::kComplexHalf, at::kComplexFloat, at::kComplexDouble};
const std::vector<at::ScalarType> kFloat8 = {at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kFloat8_e4m3fnuz,
                                             at::kFloat8_e5m2fnuz};
const std::vector<Reduction> kReductions = {Reduction::kSum,   Reduction::kAvg,   Reduction::kProduct,
                                            Reduction::kMin,   Reduction::kMax,   Reduction::kBitAnd,
                                            Reduction::kBitOr, Reduction::kBitXor};

at::ScalarType exactType(at::ScalarType type) {
  if (at::isComplexType(type)) return at::kComplexDouble;
  return at::isFloatingType(type) ? at::kDouble : at::kLong;
}

/// Small values, so that sums and products of float16 stay exact.
at::Tensor valuesOf(int rank, at::IntArrayRef shape, at::ScalarType type) {
  at::Tensor values = (at::arange(c10::multiply_integers(shape), at::kLong) * 7 + rank * 3).remainder(3).reshape(shape);
  if (at::isComplexType(type))
    return at::complex(values.to(at::kDouble), (values + rank).remainder(2).to(at::kDouble)).to(type);
  return values.to(type);
}

bool reducible(at::ScalarType type, Reduction op) {
  const bool integer = at::isIntegralType(type, true);
  if (op == Reduction::kAvg) return !integer;
  if (op == Reduction::kMin || op == Reduction::kMax) return !at::isComplexType(type);
  return op == Reduction::kSum || op == Reduction::kProduct || integer;
}

/// LibTorch's answer, in a type wide enough to be exact, then rounded once.
at::Tensor expected(const std::vector<at::Tensor>& inputs, Reduction op) {
  const at::ScalarType type = inputs[0].scalar_type();
  const at::Tensor all = at::stack(inputs).to(exactType(type));
  at::Tensor result = all[0];
  switch (op) {
    case Reduction::kSum:
      result = all.sum(0);
      break;
    case Reduction::kAvg:
      result = all.mean(0);
      break;
    case Reduction::kProduct:
      result = all.prod(0);
      break;
    case Reduction::kMin:
      result = all.amin(0);
      break;
    case Reduction::kMax:
      result = all.amax(0);
      break;
    default:
      for (std::int64_t r = 1; r < all.size(0); ++r) {
        result = op == Reduction::kBitAnd  ? at::bitwise_and(result, all[r])
                 : op == Reduction::kBitOr ? at::bitwise_or(result, all[r])
                                           : at::bitwise_xor(result, all[r]);
      }
  }
  return result.to(type);
}

/// NaNs equal; float8, complex32 and the wider unsigned types have no comparison of their own.
bool sameBits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  // Nothing may have no address, which memcmp does not take.
  return a.numel() == 0 ||
         std::memcmp(a.contiguous().const_data_ptr(), b.contiguous().const_data_ptr(), a.nbytes()) == 0;
}

void reductions(RankContext& context) {
  auto& group = dynamic_cast<CpuThreadGroup&>(context.world());
  const auto self = static_cast<std::size_t>(context.rank);
  const std::vector<std::vector<std::int64_t>> shapes = {{}, {5}, {1, 0, 2}, {3, 12345}};
  for (const at::ScalarType type : kReducible) {
    for (const Reduction op : kReductions) {
      for (const std::vector<std::int64_t>& shape : shapes) {
        const std::string what = absl::StrCat(name(op), " of ", at::toString(type), " ", c10::multiply_integers(shape));
        std::vector<at::Tensor> inputs;
        for (int r = 0; r < context.size; ++r) inputs.push_back(valuesOf(r, shape, type));
        at::Tensor out = at::empty(shape, type);
        const absl::Status status = group.reduceInto(inputs[self], out, op, -1, {1, what});
        if (!reducible(type, op)) {
          context.check(absl::IsInvalidArgument(status), absl::StrCat(what, ": ", status.ToString()));
          continue;
        }
        const at::Tensor answer = expected(inputs, op);
        context.check(status.ok() && sameBits(out, answer), absl::StrCat("all_reduce ", what, ": ", status.ToString()));
        const int root = context.size - 1;
        const absl::Status rooted = group.reduceInto(inputs[self], inputs[self], op, root, {2, what});
        context.check(
            rooted.ok() && sameBits(inputs[self], context.rank == root ? answer : valuesOf(context.rank, shape, type)),
            absl::StrCat("reduce in place ", what, ": ", rooted.ToString()));
      }
    }
  }
  for (const at::ScalarType type : kFloat8) {
    const absl::Status status = group.allReduce(at::zeros({3}).to(type), ReduceOp::kMax, {}).status();
    context.check(absl::IsInvalidArgument(status), absl::StrCat("max of float8: ", status.ToString()));
  }
}
const RankRole kReductionsRole("reductions", reductions);

/// Collectives that move bytes, for every dtype, on tensors that are not contiguous.
void movements(RankContext& context) {
  auto& group = dynamic_cast<CpuThreadGroup&>(context.world());
  const int n = context.size;
  const auto self = static_cast<std::size_t>(context.rank);
  std::vector<at::ScalarType> types = kReducible;
  types.insert(types.end(), kFloat8.begin(), kFloat8.end());
  for (const at::ScalarType type : types) {
    for (const std::int64_t rows : {0, 3, 9001}) {
      const CallTag tag{7, at::toString(type)};
      const auto make = [&](int from, int to) {
        return (at::arange(4 * rows, at::kLong) + 5 * from + 11 * to).remainder(3).to(type).reshape({4, rows}).t();
      };
      const auto check = [&](const absl::Status& status, const at::Tensor& got, const at::Tensor& wanted,
                             const char* what) {
        context.check(status.ok() && sameBits(got, wanted),
                      absl::StrCat(what, " ", tag.name, " ", rows, ": ", status.ToString()));
      };
      const at::Tensor input = make(context.rank, 0);
      const auto outputs = [&] {
        std::vector<at::Tensor> result;
        for (int r = 0; r < n; ++r) result.push_back(at::zeros({4, rows}, type).t());
        return result;
      };
      std::vector<at::Tensor> out = outputs();
      const absl::Status gathered = group.gatherInto(input, out, -1, tag);
      for (int r = 0; r < n; ++r) check(gathered, out[static_cast<std::size_t>(r)], make(r, 0), "all_gather");
      out = outputs();
      const absl::Status rooted = group.gatherInto(input, out, n - 1, tag);
      for (int r = 0; r < n; ++r) {
        const bool root = context.rank == n - 1;
        check(rooted, out[static_cast<std::size_t>(r)], root ? make(r, 0) : at::zeros({rows, 4}, type), "gather");
      }
      std::vector<at::Tensor> sends;
      for (int r = 0; r < n; ++r) sends.push_back(make(context.rank, r));
      out = outputs();
      const absl::Status swapped = group.allToAllInto(sends, out, tag);
      for (int r = 0; r < n; ++r) check(swapped, out[static_cast<std::size_t>(r)], make(r, context.rank), "all_to_all");
      out = outputs();
      check(group.scatterInto(sends, out[self], n - 1, tag), out[self], make(n - 1, context.rank), "scatter");
      at::Tensor shared = make(context.rank, 1);
      check(group.broadcastInto(shared, 0, tag), shared, make(0, 1), "broadcast");
    }
  }
  const at::Tensor row = at::arange(4.0) + context.rank;
  const auto expanded = group.allReduce(row.expand({30000, 4}), ReduceOp::kSum, {8, "expanded"});
  const at::Tensor sum = (at::arange(4.0) * n + n * (n - 1) / 2).expand({30000, 4});
  context.check(expanded.ok() && at::equal(*expanded, sum), "all_reduce of an expanded tensor");
}
const RankRole kMovements("movements", movements);

/// T08: NaN on any rank is in the result of all.
void nans(RankContext& context) {
  ThreadGroup& group = context.world();
  for (const at::ScalarType type : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
    for (const ReduceOp op : {ReduceOp::kMax, ReduceOp::kMin}) {
      for (int holder = 0; holder < context.size; ++holder) {
        const double nan = std::numeric_limits<double>::quiet_NaN();
        const at::Tensor input =
            at::tensor({context.rank + 1.0, context.rank == holder ? nan : 2.0}, at::kDouble).to(type);
        const auto result = group.allReduce(input, op, {});
        const double plain = op == ReduceOp::kMax ? context.size : 1;
        context.check(result.ok() && (*result)[0].item<double>() == plain && std::isnan((*result)[1].item<double>()),
                      absl::StrCat("NaN of rank ", holder, " under ", name(op)));
      }
    }
  }
}
const RankRole kNans("nans", nans);

/// Same inputs, same bits, on every rank and every run, for sums that rounding makes depend on their order.
void repeatable(RankContext& context) {
  ThreadGroup& group = context.world();
  const at::Tensor input = at::sin(at::arange(100003, at::kFloat) * (context.rank + 1)) * 1e3;
  const auto first = group.allReduce(input, ReduceOp::kSum, {});
  const auto second = group.allReduce(input, ReduceOp::kSum, {});
  context.check(first.ok() && second.ok() && sameBits(*first, *second), "runs differ");
  const auto all =
      group.allGather(first->unsqueeze(0), 0, std::vector<std::int64_t>(static_cast<std::size_t>(context.size), 1), {});
  for (int r = 0; all.ok() && r < context.size; ++r) context.check(sameBits((*all)[r], *first), "ranks differ");
}
const RankRole kRepeatable("repeatable", repeatable);

/// T23: calls that differ are an error on all ranks, which names operator, ranks and both shapes; afterwards the group
/// says that it is unusable, until it is rebuilt.
void mismatched(RankContext& context) {
  ThreadGroup& group = context.world();
  const CallTag tag{41, "aten::sum"};
  const at::Tensor input = at::ones({context.rank == 1 ? 4 : 2});
  const absl::Status status = group.allReduce(input, ReduceOp::kSum, tag).status();
  context.check(absl::IsFailedPrecondition(status), status.ToString());
  for (const char* part : {"rank 0", "rank 1", "[2]", "[4]", "sequence 2", "operator 41", "aten::sum"}) {
    context.check(absl::StrContains(status.message(), part), absl::StrCat("no ", part, " in: ", status.message()));
  }
  const auto start = std::chrono::steady_clock::now();
  const absl::Status later = group.allReduce(at::ones({2}), ReduceOp::kSum, {42, "aten::sum"}).status();
  context.check(absl::IsFailedPrecondition(later) && absl::StrContains(later.message(), "unusable"), later.ToString());
  context.check(std::chrono::steady_clock::now() - start < std::chrono::seconds(1), "the refusal took long");
}
const RankRole kMismatched("mismatched", mismatched);

void differentKinds(RankContext& context) {
  ThreadGroup& group = context.world();
  const absl::Status status =
      context.rank == 0 ? group.barrier({5, "a"}) : group.broadcast(at::ones({2}), 0, {5, "b"}).status();
  context.check(absl::IsFailedPrecondition(status) && absl::StrContains(status.message(), "barrier") &&
                    absl::StrContains(status.message(), "broadcast"),
                status.ToString());
}
const RankRole kDifferentKinds("different kinds", differentKinds);

void differentPairs(RankContext& context) {
  ThreadGroup& group = context.world();
  const std::vector<at::Tensor> sends = {at::ones({3}), at::ones({3})};
  std::vector<std::vector<std::int64_t>> shapes = {{3}, {3}};
  if (context.rank == 0) shapes[1] = {5};
  const absl::Status status = group.allToAll(sends, shapes, {9, "move"}).status();
  context.check(
      absl::IsFailedPrecondition(status) && absl::StrContains(status.message(), "rank 1 sends 12 bytes to rank 0"),
      status.ToString());
}
const RankRole kDifferentPairs("different pairs", differentPairs);

/// A bad argument of one rank is INVALID_ARGUMENT on all, and harmless.
void invalid(RankContext& context) {
  ThreadGroup& group = context.world();
  const std::vector<std::int64_t> wrong(static_cast<std::size_t>(context.size), 1);
  const absl::Status status = context.rank == 0 ? group.allGather(at::ones({2}), 0, wrong, {}).status()
                                                : group.allReduce(at::ones({2}), ReduceOp::kSum, {}).status();
  context.check(absl::IsInvalidArgument(status), status.ToString());
  context.check(group.barrier({}).ok(), "the group is not usable after a bad argument");
  const absl::Status nothing = group.allReduce(at::Tensor(), ReduceOp::kSum, {}).status();
  context.check(absl::IsInvalidArgument(nothing), nothing.ToString());
  const absl::Status average = group.allReduce(at::ones({2}, at::kInt), ReduceOp::kAvg, {}).status();
  context.check(absl::IsInvalidArgument(average), average.ToString());
}
const RankRole kInvalid("invalid", invalid);

void failing(RankContext& context) {
  ThreadGroup& group = context.world();
  const CallTag tag{3, "aten::mm"};
  const at::Tensor ones = at::ones({5});
  const absl::Status status = context.rank == 1 ? group.fail(absl::InvalidArgumentError("no such kernel"), tag)
                                                : group.allReduce(ones, ReduceOp::kSum, tag).status();
  context.check(absl::IsInvalidArgument(status) && status.message() == "no such kernel", status.ToString());
  const auto next = group.allReduce(ones, ReduceOp::kSum, tag);
  context.check(next.ok() && at::equal(*next, ones * context.size), "the group is not usable after fail()");
}
const RankRole kFailing("failing", failing);

void aborting(RankContext& context) {
  ThreadGroup& group = context.world();
  if (context.rank == 0) {
    group.abort(absl::CancelledError("shutting down"));
    context.check(absl::IsCancelled(group.barrier({})), "its own reason is lost");
    return;
  }
  const absl::Status status = group.allReduce(at::ones({300000}), ReduceOp::kSum, {}).status();
  context.check(absl::IsAborted(status), status.ToString());
  context.check(absl::StrContains(status.message(), "rank 0 aborted the group: shutting down"), status.ToString());
}
const RankRole kAborting("aborting", aborting);

/// Four ranks, two a process: which backend each group gets, and that all of them are right side by side.
void groupsByPlace(RankContext& context) {
  const auto backendOf = [&](const std::vector<Rank>& ranks) {
    auto group = context.manager.group(ranks);
    if (!group.ok()) {
      context.check(false, group.status().ToString());
      return GroupBackend::kMemory;
    }
    for (const std::int64_t count : {5, 100000}) {
      const std::string what = absl::StrCat(" of ", ranks.size(), " ranks, ", count);
      at::Tensor sum = at::zeros({count}, at::kDouble);
      std::vector<at::Tensor> all;
      std::vector<at::Tensor> out;
      std::vector<at::Tensor> wanted;
      for (const Rank rank : ranks) {
        all.push_back(inputOf(rank, {count}));
        sum += all.back();
        out.push_back(at::full({count}, 10 * context.rank + rank));
        wanted.push_back(at::full({count}, 10 * rank + context.rank));
      }
      const at::Tensor mine = inputOf(context.rank, {count});
      const auto reduced = (*group)->allReduce(mine, ReduceOp::kSum, {});
      context.check(reduced.ok() && at::equal(*reduced, sum), "all_reduce" + what);
      const std::vector<std::int64_t> parts(ranks.size(), count);
      const auto gathered = (*group)->allGather(mine, 0, parts, {});
      context.check(gathered.ok() && at::equal(*gathered, at::cat(all)), "all_gather" + what);
      const auto swapped = (*group)->allToAll(out, std::vector<std::vector<std::int64_t>>(ranks.size(), {count}), {});
      context.check(swapped.ok() && at::equal(at::cat(*swapped), at::cat(wanted)), "all_to_all" + what);
    }
    return (*group)->backend();
  };
  const Rank neighbour = context.rank ^ 1;
  const Rank other = context.rank ^ 2;
  context.check(
      backendOf({std::min(context.rank, neighbour), std::max(context.rank, neighbour)}) == GroupBackend::kMemory,
      "two ranks of one process are not in a group by address");
  context.check(backendOf({std::max(context.rank, other), std::min(context.rank, other)}) == GroupBackend::kFile,
                "ranks of two processes are in a group by address");
  context.check(backendOf({3, 1, 0, 2}) == GroupBackend::kFile, "a mixed group is one by address");
  context.check(backendOf({context.rank}) == GroupBackend::kMemory, "a group of one");
  context.check(context.world().barrier({}).ok(), "barrier");
}
const RankRole kGroupsByPlace("groups by place", groupsByPlace);

}  // namespace

TEST_CASE("a group's backend follows from where its ranks are") {
  for (const char* memory : {"", "shared"}) expectRanks(Mode::kMixed, 4, "groups by place", memory);
}

TEST_CASE("collectives of threads") {
  for (const int size : {1, 2, 3, 4, 8}) expectRanks(Mode::kThreads, size, "collectives");
}

TEST_CASE("collectives of processes") {
  for (const int size : {2, 4}) expectRanks(Mode::kProcesses, size, "collectives");
  expectRanks(Mode::kProcesses, 3, "collectives", "shared");
}

TEST_CASE("collectives of threads of processes") {
  for (const int size : {3, 4, 8}) expectRanks(Mode::kMixed, size, "collectives");
  expectRanks(Mode::kMixed, 3, "collectives", "shared");
}

TEST_CASE("reductions of all dtypes and operations") {
  for (const int size : {1, 2, 3, 8}) expectRanks(Mode::kThreads, size, "reductions");
  expectRanks(Mode::kProcesses, 2, "reductions");
  expectRanks(Mode::kProcesses, 2, "reductions", "shared");
  expectRanks(Mode::kMixed, 3, "reductions");
}

TEST_CASE("movements of all dtypes") {
  for (const int size : {1, 2, 3, 8}) expectRanks(Mode::kThreads, size, "movements");
  expectRanks(Mode::kProcesses, 3, "movements");
  expectRanks(Mode::kProcesses, 2, "movements", "shared");
  expectRanks(Mode::kMixed, 4, "movements", "shared");
}

TEST_CASE("64 ranks") {
  expectRanks(Mode::kThreads, 64, "repeatable");
  expectRanks(Mode::kThreads, 64, "nans");
}

TEST_CASE("NaN wins max and min, whichever rank holds it") {
  for (const int size : {2, 4}) expectRanks(Mode::kThreads, size, "nans");
  expectRanks(Mode::kProcesses, 2, "nans");
}

TEST_CASE("results are the same bits on every rank and every run") {
  expectRanks(Mode::kThreads, 4, "repeatable");
  expectRanks(Mode::kProcesses, 3, "repeatable");
}

TEST_CASE("mismatched calls are an error on all ranks") {
  for (const char* role : {"mismatched", "different kinds", "different pairs", "invalid"}) {
    expectRanks(Mode::kThreads, 2, role);
    expectRanks(Mode::kProcesses, 2, role);
  }
  expectRanks(Mode::kThreads, 4, "mismatched");
}

TEST_CASE("a failed rank fails the call on all ranks and leaves the group usable") {
  expectRanks(Mode::kThreads, 3, "failing");
  expectRanks(Mode::kProcesses, 2, "failing");
}

TEST_CASE("an aborted group ends the calls of all ranks") {
  expectRanks(Mode::kThreads, 3, "aborting");
  expectRanks(Mode::kProcesses, 2, "aborting");
}

}  // namespace dtorch::testing
