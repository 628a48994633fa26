#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
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
  for (const std::int64_t rows : rowsFor(n)) {
    const CallTag tag{static_cast<std::uint64_t>(rows), "test"};
    std::vector<at::Tensor> inputs;
    for (int r = 0; r < n; ++r) inputs.push_back(inputOf(r, {rows}));
    const at::Tensor kept = inputs[self].clone();
    const at::Tensor sum = at::stack(inputs).sum(0);
    const auto same = [&](const absl::StatusOr<at::Tensor>& got, const at::Tensor& wanted, const char* what) {
      if (!got.ok()) return context.check(false, absl::StrCat(what, " ", rows, ": ", got.status().ToString()));
      context.check(got->sizes() == wanted.sizes() && at::equal(*got, wanted), absl::StrCat(what, " differs, rows ", rows));
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
      context.check(at::equal((*received)[static_cast<std::size_t>(r)], inputOf(r, shapes[static_cast<std::size_t>(r)])),
                    "all_to_all differs");
    }
    context.check(group.barrier(tag).ok(), "barrier");
    context.check(at::equal(inputs[self], kept), "an input was changed");
  }
}
const RankRole kCollectives("collectives", collectives);

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

}  // namespace

TEST_CASE("collectives of threads") {
  for (const int size : {1, 2, 3, 4, 8}) expectRanks(Mode::kThreads, size, "collectives");
}

TEST_CASE("collectives of processes") {
  for (const int size : {2, 4}) expectRanks(Mode::kProcesses, size, "collectives");
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
