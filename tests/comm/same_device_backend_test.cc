// The backend as torch.distributed calls it, compared with LibTorch on the gathered inputs.
#include "comm/group/same_device_backend.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <numeric>
#include <string>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/catch.h"
#include "tests/comm/footprint.h"
#include "tests/comm/ranks.h"

namespace dtorch::testing {
namespace {

using Tensors = std::vector<at::Tensor>;
using Splits = std::vector<std::int64_t>;

/// The argument ends in the path of a file through which the ranks meet.
c10::intrusive_ptr<SameDeviceBackend> openBackend(RankContext& context,
                                                  std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  const std::string path = context.argument.substr(context.argument.rfind(' ') + 1);
  return SameDeviceBackend::create(c10::make_intrusive<c10d::FileStore>(path, context.size), context.rank, context.size,
                                   timeout);
}

/// Runs a role whose argument is `prefix` and the path of a new file.
std::vector<RankOutcome> runBackend(Mode mode, int size, const std::string& role, const std::string& prefix) {
  std::string folder = (std::filesystem::temp_directory_path() / "dtorch-backend-XXXXXX").string();
  ::mkdtemp(folder.data());
  auto outcomes = runRanks(mode, size, role, absl::StrCat(prefix, " ", folder, "/store"));
  std::filesystem::remove_all(folder);
  return outcomes;
}

void expectBackend(Mode mode, int size, const std::string& role, const std::string& prefix = "plain") {
  for (const RankOutcome& outcome : runBackend(mode, size, role, prefix)) {
    INFO(role << ", " << size << " " << name(mode) << " " << prefix);
    CHECK(outcome.status == 0);
    CHECK(outcome.failures == "");
  }
}

std::string errorOf(const c10::intrusive_ptr<c10d::Work>& work) {
  try {
    work->wait();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

at::Tensor valueOf(int rank, at::IntArrayRef shape) {
  return (at::arange(c10::multiply_integers(shape), at::kDouble).remainder(7) + 10 * rank).reshape(shape);
}

/// Every collective, on sizes that travel inline, in chunks, and in place.
void backendCollectives(RankContext& context) {
  const auto backend = openBackend(context);
  const int n = context.size;
  const int me = context.rank;
  const auto self = static_cast<std::size_t>(me);
  for (const std::int64_t rows : {0, 3, 30000}) {
    for (const bool async : {false, true}) {
      const auto check = [&](const char* what, const c10::intrusive_ptr<c10d::Work>& work, const Tensors& got,
                             const Tensors& wanted) {
        const std::string error = errorOf(work);
        bool same = error.empty() && got.size() == wanted.size() && work->isCompleted() && work->isSuccess();
        for (std::size_t i = 0; same && i < got.size(); ++i) same = at::equal(got[i], wanted[i]);
        context.check(same, absl::StrCat(what, " of ", rows, " rows, async ", async, ": ", error));
      };
      const auto all = [&](at::IntArrayRef shape) {
        Tensors values;
        for (int r = 0; r < n; ++r) values.push_back(valueOf(r, shape));
        return values;
      };
      const Tensors wide = all({rows, 2});
      const at::Tensor sum = at::stack(wide).sum(0);
      {
        Tensors in = {wide[self].t().contiguous().t()};  // strides of another order
        c10d::AllreduceOptions options;
        options.asyncOp = async;
        check("all_reduce", backend->allreduce(in, options), in, {sum});
        Tensors pair = {wide[self].clone(), wide[self].to(at::kInt)};
        c10d::AllreduceCoalescedOptions coalesced;
        coalesced.asyncOp = async;
        check("all_reduce coalesced", backend->allreduce_coalesced(pair, coalesced), pair, {sum, sum.to(at::kInt)});
      }
      for (int root = 0; root < n; root += n - 1) {
        Tensors reduced = {wide[self].clone()};
        c10d::ReduceOptions reduce;
        reduce.rootRank = root;
        reduce.reduceOp = c10d::ReduceOp::MAX;
        reduce.asyncOp = async;
        check("reduce", backend->reduce(reduced, reduce), reduced, {me == root ? at::stack(wide).amax(0) : wide[self]});
        Tensors sent = {wide[self].clone()};
        c10d::BroadcastOptions broadcast;
        broadcast.rootRank = root;
        broadcast.asyncOp = async;
        check("broadcast", backend->broadcast(sent, broadcast), sent, {wide[static_cast<std::size_t>(root)]});
        Tensors input = {wide[self]};
        std::vector<Tensors> gathered(me == root ? 1 : 0);
        for (int r = 0; me == root && r < n; ++r) gathered[0].push_back(at::empty({rows, 2}, at::kDouble));
        c10d::GatherOptions gather;
        gather.rootRank = root;
        gather.asyncOp = async;
        check("gather", backend->gather(gathered, input, gather), me == root ? gathered[0] : Tensors{},
              me == root ? wide : Tensors{});
        Tensors part = {at::empty({rows, 2}, at::kDouble)};
        std::vector<Tensors> parts;
        if (me == root) parts.push_back(wide);
        c10d::ScatterOptions scatter;
        scatter.rootRank = root;
        scatter.asyncOp = async;
        check("scatter", backend->scatter(part, parts, scatter), part, {wide[self]});
        if (n == 1) break;
      }
      {
        // Lists may be uneven: rank r has r rows more.
        Tensors uneven;
        std::vector<Tensors> outputs(1);
        for (int r = 0; r < n; ++r) {
          uneven.push_back(valueOf(r, {rows + r, 2}));
          outputs[0].push_back(at::empty({rows + r, 2}, at::kDouble));
        }
        Tensors input = {uneven[self]};
        c10d::AllgatherOptions options;
        options.asyncOp = async;
        check("all_gather", backend->allgather(outputs, input, options), outputs[0], uneven);
        at::Tensor whole = at::empty({n * rows, 2}, at::kDouble);
        at::Tensor own = wide[self];
        check("all_gather into tensor", backend->_allgather_base(whole, own, options), {whole}, {at::cat(wide)});
        Tensors wholes = {at::zeros({n * rows, 2}, at::kDouble), at::zeros({n * rows, 2}, at::kInt)};
        Tensors owns = {own, own.to(at::kInt)};
        check("all_gather coalesced", backend->allgather_into_tensor_coalesced(wholes, owns, options), wholes,
              {at::cat(wide), at::cat(wide).to(at::kInt)});

        std::vector<Tensors> lists(1);
        for (int r = 0; r < n; ++r) lists[0].push_back(valueOf(me, {rows + r, 2}));
        Tensors scattered = {at::empty({rows + me, 2}, at::kDouble)};
        c10d::ReduceScatterOptions reduce;
        reduce.asyncOp = async;
        check("reduce_scatter", backend->reduce_scatter(scattered, lists, reduce), scattered,
              {at::stack(all({rows + me, 2})).sum(0)});
        const at::Tensor total = at::stack(all({n * rows, 2})).sum(0).narrow(0, me * rows, rows);
        at::Tensor source = valueOf(me, {n * rows, 2});
        at::Tensor target = at::empty({rows, 2}, at::kDouble);
        check("reduce_scatter of a tensor", backend->_reduce_scatter_base(target, source, reduce), {target}, {total});
        Tensors targets = {at::zeros({rows, 2}, at::kDouble), at::zeros({rows, 2}, at::kInt)};
        Tensors sources = {source, source.to(at::kInt)};
        check("reduce_scatter coalesced", backend->reduce_scatter_tensor_coalesced(targets, sources, reduce), targets,
              {total, total.to(at::kInt)});
        context.check(at::equal(uneven[self], valueOf(me, {rows + me, 2})) && at::equal(own, valueOf(me, {rows, 2})) &&
                          at::equal(lists[0][0], valueOf(me, {rows, 2})) &&
                          at::equal(source, valueOf(me, {n * rows, 2})),
                      "a gather or reduce_scatter changed its input");
      }
      {
        // Rank i sends rank j rows + i + 2 j rows.
        const auto length = [rows](int from, int to) { return rows + from + 2 * to; };
        Splits send;
        Splits receive;
        Tensors wanted;
        Tensors sends;
        Tensors receives;
        for (int r = 0; r < n; ++r) {
          send.push_back(length(me, r));
          receive.push_back(length(r, me));
          sends.push_back(valueOf(me, {length(me, r), 2}) + r);
          wanted.push_back(valueOf(r, {length(r, me), 2}) + me);
          receives.push_back(at::empty({length(r, me), 2}, at::kDouble));
        }
        c10d::AllToAllOptions options;
        options.asyncOp = async;
        at::Tensor input = at::cat(sends);
        at::Tensor output =
            at::empty({std::accumulate(receive.begin(), receive.end(), std::int64_t{0}), 2}, at::kDouble);
        check("all_to_all of a tensor", backend->alltoall_base(output, input, receive, send, options), {output},
              {at::cat(wanted)});
        check("all_to_all", backend->alltoall(receives, sends, options), receives, wanted);
        Splits even;
        at::Tensor square = valueOf(me, {n * rows, 2});
        at::Tensor turned = at::empty({n * rows, 2}, at::kDouble);
        Tensors pieces;
        for (int r = 0; r < n; ++r) pieces.push_back(valueOf(r, {n * rows, 2}).narrow(0, me * rows, rows));
        check("all_to_all, even", backend->alltoall_base(turned, square, even, even, options), {turned},
              {at::cat(pieces)});
        context.check(at::equal(input, at::cat(sends)) && at::equal(sends[0], valueOf(me, {length(me, 0), 2})) &&
                          at::equal(square, valueOf(me, {n * rows, 2})),
                      "an all_to_all changed its input");
      }
      c10d::BarrierOptions options;
      options.asyncOp = async;
      check("barrier", backend->barrier(options), {}, {});
    }
  }
}
const RankRole kBackendCollectives("backend collectives", backendCollectives);

/// Blocks as torch.distributed's _coalescing_manager makes them: around one coalesced call, around the sends and
/// receives of batch_isend_irecv, and, when it is given a device, around calls of any kind.
void coalesced(RankContext& context) {
  const auto backend = openBackend(context);
  const int n = context.size;
  const int me = context.rank;
  context.check(backend->supportsCoalescing(), "batch_isend_irecv does not make blocks");
  // Three tensors of different dtypes; `scale` sizes them.
  const auto valuesOf = [](int rank, std::int64_t rows, int scale) {
    return Tensors{valueOf(rank, {scale * rows, 2}), valueOf(rank, {scale * 3}).to(at::kInt),
                   valueOf(rank, {scale * rows}).remainder(3).to(at::kHalf)};
  };
  const auto sumOf = [&](std::int64_t rows, int scale) {
    Tensors sums = valuesOf(0, rows, scale);
    for (int r = 1; r < n; ++r) {
      const Tensors theirs = valuesOf(r, rows, scale);
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += theirs[i];
    }
    return sums;
  };
  const auto zerosLike = [](const Tensors& tensors) {
    Tensors zeros;
    for (const at::Tensor& tensor : tensors) zeros.push_back(at::zeros_like(tensor));
    return zeros;
  };
  for (const std::int64_t rows : {0, 3, 60000 / n}) {
    for (const bool async : {false, true}) {
      const auto block = [&](const char* what, const auto& calls, const Tensors& got, const Tensors& wanted) {
        backend->startCoalescing();
        calls();
        const auto work = backend->endCoalescing();
        const std::string error = errorOf(work);
        bool same = error.empty() && work->isCompleted() && work->isSuccess();
        for (std::size_t i = 0; same && i < wanted.size(); ++i) same = at::equal(got[i], wanted[i]);
        context.check(same, absl::StrCat(what, " of ", rows, " rows, async ", async, ": ", error));
      };
      {
        c10d::AllreduceCoalescedOptions options;
        options.asyncOp = async;
        Tensors tensors = valuesOf(me, rows, 1);
        block(
            "all_reduce_coalesced", [&] { backend->allreduce_coalesced(tensors, options); }, tensors, sumOf(rows, 1));
        Tensors largest = valuesOf(me, rows, 1);
        Tensors wanted = valuesOf(0, rows, 1);
        for (int r = 1; r < n; ++r) {
          const Tensors theirs = valuesOf(r, rows, 1);
          for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] = at::maximum(wanted[i], theirs[i]);
        }
        options.reduceOp = c10d::ReduceOp::MAX;
        block(
            "all_reduce_coalesced, max", [&] { backend->allreduce_coalesced(largest, options); }, largest, wanted);
      }
      {
        c10d::AllgatherOptions options;
        options.asyncOp = async;
        Tensors inputs = valuesOf(me, rows, 1);
        Tensors wanted;
        for (std::size_t i = 0; i < inputs.size(); ++i) {
          Tensors all;
          for (int r = 0; r < n; ++r) all.push_back(valuesOf(r, rows, 1)[i]);
          wanted.push_back(at::cat(all));
        }
        Tensors outputs = zerosLike(wanted);
        block(
            "all_gather_into_tensor_coalesced",
            [&] { backend->allgather_into_tensor_coalesced(outputs, inputs, options); }, outputs, wanted);
      }
      {
        c10d::ReduceScatterOptions options;
        options.asyncOp = async;
        Tensors inputs = valuesOf(me, rows, n);
        Tensors wanted;
        for (const at::Tensor& sum : sumOf(rows, n)) {
          wanted.push_back(sum.narrow(0, me * (sum.size(0) / n), sum.size(0) / n));
        }
        Tensors outputs = zerosLike(wanted);
        block(
            "reduce_scatter_tensor_coalesced",
            [&] { backend->reduce_scatter_tensor_coalesced(outputs, inputs, options); }, outputs, wanted);
      }
      {
        // To both neighbours, two of each tag; those of one tag arrive in order.
        const int right = (me + 1) % n;
        const int left = (me + n - 1) % n;
        std::vector<Tensors> sends;
        std::vector<Tensors> receives;
        Tensors wanted;
        const auto calls = [&] {
          for (int i = 0; n > 1 && i < 4; ++i) {
            for (const int peer : {right, left}) {
              sends.push_back({valueOf(100 * me + peer, {rows, 3}) + i});
              receives.push_back({at::zeros({rows, 3}, at::kDouble)});
              wanted.push_back(valueOf(100 * peer + me, {rows, 3}) + i);
            }
          }
          for (std::size_t i = 0; i < sends.size(); ++i) {
            const int to = i % 2 == 0 ? right : left;
            backend->send(sends[i], to, static_cast<int>(i / 4));
            backend->recv(receives[i], to, static_cast<int>(i / 4));
          }
        };
        Tensors got;
        block("batch_isend_irecv", calls, got, {});
        for (std::size_t i = 0; i < receives.size(); ++i) {
          context.check(at::equal(receives[i][0], wanted[i]), absl::StrCat("batched message ", i));
        }
      }
      {
        Tensors sent = {valueOf(me, {rows, 2})};
        at::Tensor square = valueOf(me, {n * rows, 2});
        at::Tensor turned = at::zeros({n * rows, 2}, at::kDouble);
        Tensors summed = {valueOf(me, {5})};
        Tensors pieces;
        for (int r = 0; r < n; ++r) pieces.push_back(valueOf(r, {n * rows, 2}).narrow(0, me * rows, rows));
        const auto calls = [&] {
          c10d::BroadcastOptions broadcast;
          broadcast.rootRank = n - 1;
          broadcast.asyncOp = async;
          // Without asyncOp torch.distributed waits for the call in the block.
          const auto work = backend->broadcast(sent, broadcast);
          if (!async) context.check(errorOf(work).empty(), "a wait in the block");
          Splits even;
          c10d::AllToAllOptions swap;
          swap.asyncOp = true;
          backend->alltoall_base(turned, square, even, even, swap);
          c10d::AllreduceOptions sum;
          sum.asyncOp = true;
          backend->allreduce(summed, sum);
        };
        Tensors all;
        for (int r = 0; r < n; ++r) all.push_back(valueOf(r, {5}));
        block("calls of several kinds", calls, {sent[0], turned, summed[0]},
              {valueOf(n - 1, {rows, 2}), at::cat(pieces), at::stack(all).sum(0)});
      }
    }
  }
  backend->startCoalescing();
  bool thrown = false;
  try {
    backend->startCoalescing();
  } catch (const c10::DistBackendError&) {
    thrown = true;
  }
  context.check(thrown, "a block in a block");
  const auto nothing = backend->endCoalescing();
  context.check(errorOf(nothing).empty() && nothing->result().empty(), "an empty block");
  thrown = false;
  try {
    backend->endCoalescing();
  } catch (const c10::DistBackendError&) {
    thrown = true;
  }
  context.check(thrown, "the end of no block");
  context.check(errorOf(backend->barrier({})).empty(), "barrier");  // nobody leaves before
}
const RankRole kCoalesced("coalesced", coalesced);

/// What one rank cannot do is an error on all, at once and harmless; the rest of a coalesced call is done.
void wrongArguments(RankContext& context) {
  const auto backend = openBackend(context);
  const int n = context.size;
  const bool wrong = context.rank == 0;
  const auto check = [&](const char* what, const c10::intrusive_ptr<c10d::Work>& work) {
    const auto start = std::chrono::steady_clock::now();
    const std::string error = errorOf(work);
    context.check(absl::StrContains(error, "INVALID_ARGUMENT"), absl::StrCat(what, ": ", error));
    context.check(std::chrono::steady_clock::now() - start < std::chrono::seconds(1), absl::StrCat(what, " took long"));
    context.check(errorOf(backend->barrier({})).empty(), absl::StrCat("after ", what));
  };
  at::Tensor input = at::ones({2});
  at::Tensor output = at::zeros({2 * n + (wrong ? 1 : 0)});
  check("all_gather", backend->_allgather_base(output, input, {}));
  Tensors inputs = {input, input, input};
  Tensors outputs = {at::zeros({2 * n}), output, at::zeros({2 * n})};
  backend->startCoalescing();
  backend->allgather_into_tensor_coalesced(outputs, inputs, {});
  check("all_gather_into_tensor_coalesced", backend->endCoalescing());
  context.check(at::equal(outputs[0], at::ones({2 * n})) && at::equal(outputs[2], at::ones({2 * n})),
                "the rest of a coalesced call");
  Tensors several(wrong ? 2 : 1, input);
  check("broadcast", backend->broadcast(several, {}));
  Splits sends(static_cast<std::size_t>(wrong ? n + 1 : n), 1);
  Splits receives(static_cast<std::size_t>(n), 1);
  at::Tensor from = at::ones({static_cast<std::int64_t>(sends.size())});
  at::Tensor to = at::ones({n});
  check("all_to_all", backend->alltoall_base(to, from, receives, sends, {}));
}
const RankRole kWrongArguments("wrong arguments", wrongArguments);

/// Every reduce operation of c10d; integers and floats.
void backendReductions(RankContext& context) {
  const auto backend = openBackend(context);
  using Op = c10d::ReduceOp;
  for (const Op::RedOpType type : {Op::SUM, Op::AVG, Op::PRODUCT, Op::MIN, Op::MAX, Op::BAND, Op::BOR, Op::BXOR}) {
    const bool bits = type == Op::BAND || type == Op::BOR || type == Op::BXOR;
    Tensors values;
    for (int r = 0; r < context.size; ++r)
      values.push_back((at::arange(40) + 3 * r).remainder(5).to(bits ? at::kInt : at::kFloat));
    at::Tensor wanted = values[0];
    for (std::size_t r = 1; r < values.size(); ++r) {
      switch (type) {
        case Op::PRODUCT:
          wanted = wanted * values[r];
          break;
        case Op::MIN:
          wanted = at::minimum(wanted, values[r]);
          break;
        case Op::MAX:
          wanted = at::maximum(wanted, values[r]);
          break;
        case Op::BAND:
          wanted = at::bitwise_and(wanted, values[r]);
          break;
        case Op::BOR:
          wanted = at::bitwise_or(wanted, values[r]);
          break;
        case Op::BXOR:
          wanted = at::bitwise_xor(wanted, values[r]);
          break;
        default:
          wanted = wanted + values[r];
      }
    }
    if (type == Op::AVG) wanted = wanted / context.size;
    Tensors tensor = {values[static_cast<std::size_t>(context.rank)]};
    c10d::AllreduceOptions options;
    options.reduceOp = type;
    const std::string error = errorOf(backend->allreduce(tensor, options));
    context.check(error.empty() && at::allclose(tensor[0], wanted),
                  absl::StrCat("operation ", static_cast<int>(type), ": ", error));
  }
  const double sum = 0.5 * context.size * (context.size + 1) / 2;
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kComplexFloat}) {
    Tensors tensor = {at::full({9}, context.rank + 1.0, type)};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::makeNCCLPreMulSum(0.5);
    const std::string error = errorOf(backend->allreduce(tensor, options));
    context.check(error.empty() && at::equal(tensor[0], at::full({9}, sum, type)),
                  absl::StrCat("PREMUL_SUM of ", at::toString(type), ": ", error));
    at::Tensor part = at::zeros({2}, type);
    at::Tensor whole = at::full({2 * context.size}, context.rank + 1.0, type);
    c10d::ReduceScatterOptions scatter;
    scatter.reduceOp = c10d::makeNCCLPreMulSum(at::tensor({0.5}).to(type));
    const std::string refused = errorOf(backend->_reduce_scatter_base(part, whole, scatter));
    context.check(refused.empty() && at::equal(part, at::full({2}, sum, type)) &&
                      at::equal(whole, at::full({2 * context.size}, context.rank + 1.0, type)),
                  absl::StrCat("reduce_scatter by PREMUL_SUM of ", at::toString(type), ": ", refused));
  }
}
const RankRole kBackendReductions("backend reductions", backendReductions);

void backendWork(RankContext& context) {
  const auto backend = openBackend(context);
  // Asynchronous calls of one rank run in their order; their results are there when they say so.
  std::vector<Tensors> tensors;
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  c10d::AllreduceOptions options;
  options.asyncOp = true;
  for (int i = 0; i < 50; ++i) {
    tensors.push_back({at::full({1000 * i}, context.rank + i)});
    works.push_back(backend->allreduce(tensors.back(), options));
  }
  const auto future = works[49]->getFuture();
  future->wait();
  for (int i = 0; i < 50; ++i) {
    const auto at = static_cast<std::size_t>(i);
    context.check(works[at]->isCompleted() && works[at]->isSuccess() && !works[at]->exception(), "not in order");
    const int sum = context.size * i + context.size * (context.size - 1) / 2;
    context.check(at::equal(tensors[at][0], at::full({1000 * i}, sum)), "all_reduce");
    context.check(works[at]->result()[0].is_same(tensors[at][0]), "result()");
  }
  context.check(future->value().toTensorVector()[0].is_same(tensors[49][0]), "getFuture()");

  // A wait that ends before the call does not end the call: rank 0 waits too short for the others, which come later.
  Tensors come = {at::ones({1})};
  if (context.rank == 0) {
    c10d::BarrierOptions barrier;
    barrier.asyncOp = true;
    const auto open = backend->barrier(barrier);
    std::string error;
    try {
      open->wait(std::chrono::milliseconds(20));
    } catch (const std::exception& e) {
      error = e.what();
    }
    context.check(absl::StrContains(error, "timed out") && !open->isCompleted(), absl::StrCat("a short wait: ", error));
    for (int r = 1; r < context.size; ++r) context.check(errorOf(backend->send(come, r, 0)).empty(), "send");
    context.check(open->wait(std::chrono::seconds(20)) && open->isSuccess(), "the wait after it");
  } else {
    context.check(errorOf(backend->recv(come, 0, 0)).empty(), "recv");
    context.check(errorOf(backend->barrier({})).empty(), "barrier");
  }

  // What cannot be reduced is a ValueError on all ranks, and harmless.
  Tensors complex = {at::ones({2}, at::kComplexFloat)};
  options.reduceOp = c10d::ReduceOp::MAX;
  const auto refused = backend->allreduce(complex, options);
  bool valueError = false;
  try {
    refused->wait();
  } catch (const c10::ValueError&) {
    valueError = true;
  }
  context.check(valueError && refused->isCompleted() && !refused->isSuccess() && refused->exception(),
                "a max of complex numbers");
  refused->getFuture()->wait();
  context.check(refused->getFuture()->hasError(), "getFuture() of an error");

  // A call that others do not make ends at its deadline, and the group is unusable; messages still pass.
  Tensors word = {at::ones({1})};
  if (context.rank == 0) {
    c10d::BarrierOptions barrier;
    barrier.timeout = std::chrono::milliseconds(100);
    context.check(absl::StrContains(errorOf(backend->barrier(barrier)), "DEADLINE_EXCEEDED"), "a barrier of one rank");
    for (int r = 1; r < context.size; ++r) context.check(errorOf(backend->send(word, r, 0)).empty(), "send");
  } else {
    context.check(errorOf(backend->recv(word, 0, 0)).empty(), "recv");
  }
  const std::string later = errorOf(backend->barrier({}));
  context.check(absl::StrContains(later, "DEADLINE_EXCEEDED"), absl::StrCat("after a deadline: ", later));
}
const RankRole kBackendWork("backend work", backendWork);

void sendsAndReceives(RankContext& context) {
  const auto backend = openBackend(context);
  const int n = context.size;
  const int me = context.rank;
  const int right = (me + 1) % n;
  const int left = (me + n - 1) % n;
  for (const std::int64_t count : {0, 5, 100000}) {
    // All send first: a rank that waited for its send to be received before it receives would wait for ever.
    Tensors out = {valueOf(me, {count, 3}).t()};
    Tensors in = {at::zeros({3, count}, at::kDouble)};
    const auto sent = backend->send(out, right, 0);
    const std::string received = errorOf(backend->recv(in, left, 0));
    context.check(received.empty() && at::equal(in[0], valueOf(left, {count, 3}).t()),
                  absl::StrCat("recv: ", received));
    context.check(errorOf(sent).empty(), "send");
  }
  // A batch: several to each peer, received in another order of tags; those of one tag in order.
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  std::vector<Tensors> kept;
  for (int r = 0; r < n; ++r) {
    for (int i = 0; r != me && i < 4; ++i) {
      kept.push_back({at::full({2000}, 100 * me + 10 * r + i)});
      works.push_back(backend->send(kept.back(), r, i / 2));
    }
  }
  for (int r = 0; r < n; ++r) {
    for (const int i : {2, 0, 3, 1}) {
      if (r == me) continue;
      Tensors in = {at::zeros({2000}, at::kLong)};
      const std::string error = errorOf(backend->recv(in, r, i / 2));
      context.check(error.empty() && in[0].eq(100 * r + 10 * me + i).all().item<bool>(),
                    absl::StrCat("batch: ", error, in[0][0].item<int>()));
    }
  }
  for (const auto& work : works) context.check(errorOf(work).empty(), "batched send");
  // From whoever comes first.
  Tensors mine = {at::full({4}, me)};
  if (me != 0) {
    context.check(errorOf(backend->send(mine, 0, 7)).empty(), "send to anybody's receive");
  } else {
    std::vector<int> seen(static_cast<std::size_t>(n), 0);
    for (int i = 1; i < n; ++i) {
      Tensors in = {at::zeros({4}, at::kLong)};
      const auto work = backend->recvAnysource(in, 7);
      context.check(errorOf(work).empty(), "receive from anybody");
      const int source = work->sourceRank();
      context.check(source > 0 && in[0].eq(source).all().item<bool>() && seen[static_cast<std::size_t>(source)]++ == 0,
                    "sourceRank()");
    }
  }
  // More than the store holds at once.
  works.clear();
  kept.clear();
  for (int i = 0; i < 600; ++i) {
    kept.push_back({at::full({2}, i)});
    works.push_back(backend->send(kept.back(), right, 9));
  }
  for (int i = 0; i < 600; ++i) {
    Tensors in = {at::zeros({2}, at::kLong)};
    const std::string error = errorOf(backend->recv(in, left, 9));
    context.check(error.empty() && in[0].eq(i).all().item<bool>(), absl::StrCat("message ", i, ": ", error));
  }
  for (const auto& work : works) context.check(errorOf(work).empty(), "one of many sends");
  // A tensor that does not fit is an error at both ends, with the same text; the next one comes through.
  Tensors four = {at::ones({4})};
  Tensors five = {at::zeros({5})};
  const auto wrong = backend->send(four, right, 3);
  const std::string atReceiver = errorOf(backend->recv(five, left, 3));
  const std::string atSender = errorOf(wrong);
  context.check(absl::StrContains(atReceiver, "a send of 4 Float meets a receive of 5 Float"), atReceiver);
  context.check(absl::StrContains(atSender, "a send of 4 Float meets a receive of 5 Float"), atSender);
  const auto good = backend->send(four, right, 3);
  Tensors fits = {at::zeros({4})};
  context.check(errorOf(backend->recv(fits, left, 3)).empty() && errorOf(good).empty(), "after a wrong size");
  context.check(errorOf(backend->barrier({})).empty(), "barrier");
  backend->setTimeout(std::chrono::milliseconds(50));
  context.check(absl::StrContains(errorOf(backend->recv(fits, left, 99)), "DEADLINE_EXCEEDED"),
                "a receive without a send");
  backend->setTimeout(std::chrono::seconds(20));
  context.check(errorOf(backend->barrier({})).empty(), "barrier");  // nobody leaves before
}
const RankRole kSendsAndReceives("sends and receives", sendsAndReceives);

/// The last rank dies, or leaves, while the others wait for it.
void lostPeer(RankContext& context) {
  auto backend = openBackend(context);
  const int victim = context.size - 1;
  const bool dies = absl::StartsWith(context.argument, "dies");
  Tensors tensor = {at::ones({10})};
  context.check(errorOf(backend->barrier({})).empty(), "barrier");
  if (context.rank == victim) {
    if (dies) ::raise(SIGKILL);
    return;
  }
  const auto start = std::chrono::steady_clock::now();
  std::string error;
  if (context.rank == 0) error = errorOf(backend->recv(tensor, victim, 0));
  if (context.rank == 1) error = errorOf(backend->send(tensor, victim, 0));
  std::string named = absl::StrCat("rank ", victim);
  if (context.rank == 2 && dies) error = errorOf(backend->recvAnysource(tensor, 0));
  if (context.rank == 2 && !dies) {
    error = errorOf(backend->barrier({}));
    named = "rank ";  // of several that leave, any may be seen first
  }
  context.check(absl::StrContains(error, "UNAVAILABLE") && absl::StrContains(error, named), error);
  context.check(std::chrono::steady_clock::now() - start < std::chrono::seconds(1), "it took long");
}
const RankRole kLostPeer("lost peer", lostPeer);

/// Rank 0 aborts; rank 1, which waits for it, sees that it leaves.
void abortedBackend(RankContext& context) {
  const auto backend = openBackend(context);
  Tensors tensor = {at::ones({10})};
  const auto waiting = backend->recv(tensor, 1 - context.rank, 0);
  context.check(!waiting->isCompleted(), "a receive without a send is done");
  context.check(errorOf(backend->barrier({})).empty(), "barrier");
  if (context.rank == 1) {
    context.check(absl::StrContains(errorOf(waiting), "rank 0 left"), errorOf(waiting));
    return;
  }
  backend->abort();
  context.check(absl::StrContains(errorOf(waiting), "ABORTED"), errorOf(waiting));
  context.check(!errorOf(backend->barrier({})).empty(), "a barrier after abort()");
}
const RankRole kAbortedBackend("aborted backend", abortedBackend);

/// Calls, sends and blocks: nothing grows.
void manyOperations(RankContext& context) {
  const auto backend = openBackend(context);
  const int peer = 1 - context.rank;
  Footprint before;
  for (int i = 0; i < 20000; ++i) {
    if (i == 1000) before = Footprint::now();
    Tensors tensor = {at::ones({i % 11 == 0 ? 60000 : 100})};
    Tensors received = {at::zeros_like(tensor[0])};
    c10d::AllreduceOptions options;
    options.asyncOp = i % 2 == 0;
    std::string error = errorOf(backend->allreduce(tensor, options));
    backend->startCoalescing();
    backend->send(tensor, peer, 0);
    backend->recv(received, peer, 0);
    error += errorOf(backend->endCoalescing());
    if (!error.empty()) return context.check(false, error);
  }
  const std::string growth = Footprint::now().growthSince(before, 512);
  context.check(growth.empty(), growth);
  context.check(errorOf(backend->barrier({})).empty(), "barrier");
}
const RankRole kManyOperations("many operations", manyOperations);

}  // namespace

TEST_CASE("20,000 rounds of calls of the backend leave nothing behind", "[backend]") {
  for (const char* memory : {"plain", "shared"}) expectBackend(Mode::kProcesses, 2, "many operations", memory);
}

TEST_CASE("the backend's collectives", "[backend]") {
  for (const int size : {1, 2, 3, 8}) expectBackend(Mode::kThreads, size, "backend collectives");
  expectBackend(Mode::kProcesses, 2, "backend collectives");
  expectBackend(Mode::kProcesses, 3, "backend collectives", "shared");
}

TEST_CASE("coalesced calls", "[backend]") {
  for (const int size : {1, 2, 3, 4, 8, 64}) expectBackend(Mode::kThreads, size, "coalesced");
  for (const int size : {2, 3, 4}) {
    for (const char* memory : {"plain", "shared"}) expectBackend(Mode::kProcesses, size, "coalesced", memory);
  }
  expectBackend(Mode::kMixed, 4, "coalesced");
}

TEST_CASE("what one rank cannot do is an error on all", "[backend]") {
  expectBackend(Mode::kThreads, 3, "wrong arguments");
  expectBackend(Mode::kProcesses, 2, "wrong arguments");
}

TEST_CASE("the backend's reduce operations", "[backend]") {
  for (const int size : {2, 3}) expectBackend(Mode::kThreads, size, "backend reductions");
}

TEST_CASE("the backend's asynchronous work", "[backend]") {
  expectBackend(Mode::kThreads, 3, "backend work");
  expectBackend(Mode::kProcesses, 2, "backend work");
}

TEST_CASE("sends and receives in any order", "[backend]") {
  for (const int size : {2, 3, 4}) expectBackend(Mode::kThreads, size, "sends and receives");
  expectBackend(Mode::kProcesses, 3, "sends and receives");
  expectBackend(Mode::kProcesses, 3, "sends and receives", "shared");
}

TEST_CASE("COMM-1: a peer that dies or leaves ends sends and receives", "[backend]") {
  const auto outcomes = runBackend(Mode::kProcesses, 4, "lost peer", "dies");
  for (std::size_t r = 0; r < outcomes.size(); ++r) {
    CHECK(outcomes[r].status == (r == 3 ? SIGKILL : 0));
    CHECK(outcomes[r].failures == "");
  }
  expectBackend(Mode::kThreads, 4, "lost peer", "leaves");
  expectBackend(Mode::kProcesses, 4, "lost peer", "leaves");
}

TEST_CASE("abort ends sends, receives and calls", "[backend]") { expectBackend(Mode::kThreads, 2, "aborted backend"); }

}  // namespace dtorch::testing
