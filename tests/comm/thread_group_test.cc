#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <utility>
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
    std::vector<std::pair<at::Tensor, at::Tensor>> given;  // inputs, and what was in them
    const auto give = [&given](const at::Tensor& input) {
      given.emplace_back(input, input.clone());
      return input;
    };
    give(inputs[self]);
    const at::Tensor sum = at::stack(inputs).sum(0);
    const auto same = [&](const absl::StatusOr<at::Tensor>& got, const at::Tensor& wanted, const char* what) {
      if (!got.ok()) return context.check(false, absl::StrCat(what, " ", rows, ": ", got.status().ToString()));
      context.check(got->sizes() == wanted.sizes() && at::equal(*got, wanted),
                    absl::StrCat(what, " differs, rows ", rows));
      context.check(got->is_contiguous() && !got->is_alias_of(inputs[self]), absl::StrCat(what, " is no new tensor"));
    };
    same(group.allReduce(inputs[self], ReduceOp::kSum, tag), sum, "all_reduce");
    for (int root = 0; root < n; ++root) {
      same(group.broadcast(inputs[self], root, tag), inputs[static_cast<std::size_t>(root)], "broadcast");
    }

    // Uneven, one rank with nothing, and along an inner dimension too.
    std::vector<std::int64_t> lengths;
    std::vector<at::Tensor> uneven;
    std::vector<at::Tensor> inner;
    for (int r = 0; r < n; ++r) {
      lengths.push_back(r == 1 ? 0 : rows + r);
      uneven.push_back(inputOf(r, {lengths.back(), 2}));
      inner.push_back(inputOf(r, {3, lengths.back(), 2}));
    }
    same(group.allGather(give(uneven[self]), 0, lengths, tag), at::cat(uneven, 0), "all_gather");
    same(group.allGather(give(inner[self]), 1, lengths, tag), at::cat(inner, 1), "all_gather inside");

    const std::int64_t total = at::tensor(lengths).sum().item<std::int64_t>();
    std::vector<at::Tensor> wide;
    for (int r = 0; r < n; ++r) wide.push_back(inputOf(r, {3, total}));
    const at::Tensor reduced = at::stack(wide).sum(0);
    const at::Tensor own = reduced.split_with_sizes(lengths, 1)[self].contiguous();
    same(group.reduceScatter(give(wide[self]), ReduceOp::kSum, 1, lengths, tag), own, "reduce_scatter");
    const at::Tensor turned = wide[self].t().contiguous().t();
    same(group.reduceScatter(give(turned), ReduceOp::kSum, 1, lengths, tag), own, "reduce_scatter of other strides");

    // Rank i sends rank j i + 2 * j rows of its own.
    std::vector<at::Tensor> sends;
    std::vector<std::vector<std::int64_t>> shapes;
    for (int r = 0; r < n; ++r) {
      sends.push_back(give(inputOf(context.rank, {rows + context.rank + 2 * r})));
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
    for (const auto& [input, before] : given) context.check(at::equal(input, before), "an input was changed");
  }
}
const RankRole kCollectives("collectives", collectives);

/// No rank's result is another rank's memory: each changes its own in place, and only that. Small and large ones.
void ownResults(RankContext& context) {
  ThreadGroup& group = context.world();
  const int n = context.size;
  for (const std::int64_t rows : {3, 30000}) {
    const at::Tensor input = at::ones({n, rows});
    const std::vector<std::int64_t> lengths(static_cast<std::size_t>(n), 1);
    const std::vector<at::Tensor> sends(static_cast<std::size_t>(n), input);
    const std::vector<std::vector<std::int64_t>> shapes(static_cast<std::size_t>(n), {n, rows});
    std::vector<at::Tensor> results = *group.allToAll(sends, shapes, {});
    results.push_back(*group.allReduce(input, ReduceOp::kSum, {}));
    results.push_back(*group.allGather(input.narrow(0, 0, 1), 0, lengths, {}));
    results.push_back(*group.reduceScatter(input, ReduceOp::kSum, 0, lengths, {}));
    results.push_back(*group.broadcast(input, 0, {}));
    for (std::size_t i = 0; i < results.size(); ++i) results[i].fill_(100 * context.rank + static_cast<int>(i));
    context.check(group.barrier({}).ok(), "barrier");
    for (std::size_t i = 0; i < results.size(); ++i) {
      context.check(results[i].eq(100 * context.rank + static_cast<int>(i)).all().item<bool>(),
                    absl::StrCat("result ", i, " of ", rows, " rows is another rank's too"));
    }
    context.check(input.eq(1).all().item<bool>(), "a result is its input");
    context.check(group.barrier({}).ok(), "barrier");
  }
}
const RankRole kOwnResults("own results", ownResults);

/// pytorch#85234, gloo#179: tensors without elements keep their shapes, whatever is done with them.
void nothingToSend(RankContext& context) {
  ThreadGroup& group = context.world();
  const int n = context.size;
  const at::Tensor empty = at::empty({1, 0, 2});
  const auto check = [&](const absl::StatusOr<at::Tensor>& got, at::IntArrayRef shape, const char* what) {
    context.check(got.ok() && got->sizes() == shape && got->is_contiguous(),
                  absl::StrCat(what, ": ", got.status().ToString()));
  };
  for (int i = 1; i <= 5; ++i) check(group.allReduce(empty, static_cast<ReduceOp>(i), {}), {1, 0, 2}, "all_reduce");
  for (int root = 0; root < n; ++root) check(group.broadcast(empty, root, {}), {1, 0, 2}, "broadcast");
  const std::vector<std::int64_t> ones(static_cast<std::size_t>(n), 1);
  const std::vector<std::int64_t> zeros(static_cast<std::size_t>(n), 0);
  check(group.allGather(empty, 0, ones, {}), {n, 0, 2}, "all_gather along dim 0");
  check(group.allGather(empty, 1, zeros, {}), {1, 0, 2}, "all_gather along the dim of no extent");
  check(group.reduceScatter(at::empty({n, 0, 2}), ReduceOp::kSum, 0, ones, {}), {1, 0, 2}, "reduce_scatter");
  const auto swapped =
      group.allToAll(std::vector<at::Tensor>(static_cast<std::size_t>(n), empty),
                     std::vector<std::vector<std::int64_t>>(static_cast<std::size_t>(n), {1, 0, 2}), {});
  context.check(swapped.ok() && swapped->back().sizes() == at::IntArrayRef({1, 0, 2}), "all_to_all");
  const auto after = group.allReduce(at::ones({2}), ReduceOp::kSum, {});
  context.check(after.ok() && at::equal(*after, at::full({2}, static_cast<float>(n))), "what comes after");
}
const RankRole kNothingToSend("nothing to send", nothingToSend);

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

/// Small values, so that sums and products of float16 stay exact; others on the ranks beside.
at::Tensor valuesOf(int rank, at::IntArrayRef shape, at::ScalarType type) {
  at::Tensor values = (at::arange(c10::multiply_integers(shape), at::kLong) * 7 + rank * 2).remainder(3).reshape(shape);
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

/// The same bits, but for the signs of zeros in complex numbers: those of a product depend on the order of its factors.
bool sameResult(const at::Tensor& a, const at::Tensor& b) {
  if (!a.is_complex()) return sameBits(a, b);
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         at::equal(a.to(at::kComplexDouble), b.to(at::kComplexDouble));
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
        context.check(status.ok() && sameResult(out, answer),
                      absl::StrCat("all_reduce ", what, ": ", status.ToString()));
        const at::Tensor mine = valuesOf(context.rank, shape, type);
        context.check(sameBits(inputs[self], mine), absl::StrCat("all_reduce changed its input: ", what));
        at::Tensor part = at::empty(shape, type);
        std::vector<at::Tensor> parts;  // for rank r the values of the r-th rank after this one
        std::vector<at::Tensor> forMe;
        for (int r = 0; r < context.size; ++r) {
          parts.push_back(valuesOf(context.rank + r, shape, type));
          forMe.push_back(valuesOf(r + context.rank, shape, type));
        }
        const absl::Status scattered = group.reduceScatterInto(parts, part, op, {3, what});
        context.check(scattered.ok() && sameResult(part, expected(forMe, op)),
                      absl::StrCat("reduce_scatter ", what, ": ", scattered.ToString()));
        const int root = context.size - 1;
        const absl::Status rooted = group.reduceInto(inputs[self], inputs[self], op, root, {2, what});
        context.check(rooted.ok() && sameResult(inputs[self], context.rank == root ? answer : mine),
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
        return (at::arange(4 * rows, at::kLong) + from + 3 * to).remainder(7).to(type).reshape({4, rows}).t();
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

/// ml-explore/mlx#4072, tvm#19518: NaN on any rank is in the result of all.
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

/// nccl#1417, pytorch#174844: calls that differ are an error on all ranks, which names operator, ranks and both shapes;
/// afterwards the group says that it is unusable, until it is rebuilt.
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

/// Whatever the ranks must agree on: one thing differs, and all ranks' errors show both. In groups of their own, since
/// each is unusable afterwards; the argument numbers what differs.
struct Difference {
  const char* what;
  std::function<absl::Status(CpuThreadGroup&, bool odd)> call;
  const char* even;
  const char* odd;
};
const std::vector<Difference>& differences() {
  static const std::vector<Difference> all = {
      {"dtype",
       [](CpuThreadGroup& group, bool odd) {
         return group.allReduce(at::ones({6}, odd ? at::kInt : at::kFloat), ReduceOp::kSum, {4, "x"}).status();
       },
       "float32[6]", "int32[6]"},
      {"reduce operation",
       [](CpuThreadGroup& group, bool odd) {
         return group.allReduce(at::ones({6}), odd ? ReduceOp::kMax : ReduceOp::kSum, {4, "x"}).status();
       },
       "all_reduce(sum)", "all_reduce(max)"},
      {"root",
       [](CpuThreadGroup& group, bool odd) {
         return group.broadcast(at::ones({6}), odd ? 1 : 0, {4, "x"}).status();
       },
       "with root 0", "with root 1"},
      {"shape of the same size",
       [](CpuThreadGroup& group, bool odd) {
         return group.allReduce(odd ? at::ones({3, 2}) : at::ones({2, 3}), ReduceOp::kSum, {4, "x"}).status();
       },
       "[2, 3]", "[3, 2]"},
      {"dim",
       [](CpuThreadGroup& group, bool odd) {
         const std::vector<std::int64_t> lengths(static_cast<std::size_t>(group.size()), 1);
         return group.allGather(at::ones({1, 1}), odd ? 1 : 0, lengths, {4, "x"}).status();
       },
       "along dim 0", "along dim 1"},
      {"operator",
       [](CpuThreadGroup& group, bool odd) {
         return group.barrier({odd ? 5U : 4U, odd ? "y" : "x"});
       },
       "for operator 4 (x)", "for operator 5 (y)"},
  };
  return all;
}
void different(RankContext& context) {
  auto& group = dynamic_cast<CpuThreadGroup&>(context.world());
  const Difference& difference = differences()[std::stoul(context.argument)];
  const absl::Status status = difference.call(group, context.rank == 1);
  context.check(absl::IsFailedPrecondition(status), absl::StrCat(difference.what, ": ", status.ToString()));
  for (const char* part : {"rank 0", "rank 1", "sequence 2", difference.even, difference.odd}) {
    context.check(absl::StrContains(status.message(), part), absl::StrCat("no ", part, " in: ", status.message()));
  }
}
const RankRole kDifferent("different", different);

/// A call that one rank leaves out is found at its next one: at once when calls have operators' numbers, or differ.
void skipped(RankContext& context) {
  ThreadGroup& group = context.world();
  const bool numbered = context.argument == "numbered";
  const auto tag = [numbered](std::uint64_t number) { return CallTag{numbered ? number : 0, "step"}; };
  absl::Status status;
  if (context.rank != 1) status = group.allReduce(at::ones({3}), ReduceOp::kSum, tag(7)).status();
  if (status.ok()) {
    status = numbered ? group.allReduce(at::ones({3}), ReduceOp::kSum, tag(8)).status() : group.barrier(tag(8));
  }
  context.check(absl::IsFailedPrecondition(status) && absl::StrContains(status.message(), "sequence 2"),
                status.ToString());
}
const RankRole kSkipped("skipped", skipped);

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

TEST_CASE("no two ranks' results share memory") {
  for (const int size : {1, 2, 4}) expectRanks(Mode::kThreads, size, "own results");
  for (const char* memory : {"", "shared"}) {
    expectRanks(Mode::kProcesses, 2, "own results", memory);
    expectRanks(Mode::kMixed, 3, "own results", memory);
  }
}

TEST_CASE("tensors without elements") {
  for (const int size : {1, 2, 4}) expectRanks(Mode::kThreads, size, "nothing to send");
  for (const char* memory : {"", "shared"}) expectRanks(Mode::kProcesses, 2, "nothing to send", memory);
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
  for (const char* memory : {"", "shared"}) expectRanks(Mode::kProcesses, 3, "repeatable", memory);
}

TEST_CASE("mismatched calls are an error on all ranks") {
  for (const char* role : {"mismatched", "different kinds", "different pairs", "invalid"}) {
    expectRanks(Mode::kThreads, 2, role);
    expectRanks(Mode::kProcesses, 2, role);
  }
  expectRanks(Mode::kThreads, 4, "mismatched");
  for (std::size_t i = 0; i < differences().size(); ++i) {
    expectRanks(Mode::kThreads, 3, "different", std::to_string(i));
    expectRanks(Mode::kProcesses, 2, "different", std::to_string(i));
  }
  for (const char* tags : {"numbered", "plain"}) expectRanks(Mode::kThreads, 3, "skipped", tags);
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
