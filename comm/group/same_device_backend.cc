#include "comm/group/same_device_backend.h"

#include <pthread.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/store/shared_allocator.h"

namespace dtorch {
namespace {

const CallTag kTag{0, "torch.distributed"};

absl::Status toStatus(const std::exception& error) {
  const auto* ours = dynamic_cast<const c10::Error*>(&error);
  const std::string text = ours == nullptr ? error.what() : ours->what_without_backtrace();
  return dynamic_cast<const c10::ValueError*>(&error) == nullptr ? absl::InternalError(text)
                                                                 : absl::InvalidArgumentError(text);
}

/// Makes a call of the group. Where it cannot be prepared, all ranks get the error: none waits for this one.
template <typename Call>
absl::Status guarded(CpuThreadGroup& group, const Call& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    return group.fail(toStatus(error), kTag);
  }
}

/// The same for `count` calls, all of which are made; the first error.
template <typename Call>
absl::Status oneByOne(CpuThreadGroup& group, std::size_t count, const Call& call) {
  absl::Status status;
  for (std::size_t i = 0; i < count; ++i) status.Update(guarded(group, [&] { return call(i); }));
  return status;
}

std::exception_ptr toException(const absl::Status& status) {
  const c10::SourceLocation here{__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)};
  const std::string text = status.ToString();
  if (absl::IsInvalidArgument(status)) return std::make_exception_ptr(c10::ValueError(here, text));
  return std::make_exception_ptr(c10::DistBackendError(here, text));
}

Reduction toReduction(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::PREMUL_SUM:
      return Reduction::kSum;
    case c10d::ReduceOp::AVG:
      return Reduction::kAvg;
    case c10d::ReduceOp::PRODUCT:
      return Reduction::kProduct;
    case c10d::ReduceOp::MIN:
      return Reduction::kMin;
    case c10d::ReduceOp::MAX:
      return Reduction::kMax;
    case c10d::ReduceOp::BAND:
      return Reduction::kBitAnd;
    case c10d::ReduceOp::BOR:
      return Reduction::kBitOr;
    case c10d::ReduceOp::BXOR:
      return Reduction::kBitXor;
    case c10d::ReduceOp::UNUSED:
      break;
  }
  return Reduction::kNone;  // no kernel: INVALID_ARGUMENT
}

/// What is reduced: `input`, multiplied first under PREMUL_SUM.
at::Tensor weighted(const at::Tensor& input, const c10d::ReduceOp& op) {
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) return input;
  const auto* factor = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(factor != nullptr, "PREMUL_SUM without a factor");
  const at::Tensor product =
      factor->tensor_factor.defined() ? input * factor->tensor_factor : input * factor->double_factor;
  return product.to(input.scalar_type());
}

const at::Tensor& only(const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "one tensor a rank is expected, ", tensors.size(), " were given");
  return tensors[0];
}

const std::vector<at::Tensor>& oneFor(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), outputs.size(), " outputs for ", inputs.size(), " inputs");
  return outputs;
}

const std::vector<at::Tensor>& only(const std::vector<std::vector<at::Tensor>>& lists) {
  TORCH_CHECK_VALUE(lists.size() == 1, "one list of tensors a rank is expected, ", lists.size(), " were given");
  return lists[0];
}

/// `tensor`, contiguous, as equal parts for `ranks` ranks.
std::vector<at::Tensor> equalParts(const at::Tensor& tensor, int ranks) {
  TORCH_CHECK_VALUE(tensor.is_contiguous() && tensor.numel() % ranks == 0, "a contiguous tensor of equal parts for ",
                    ranks, " ranks is expected, got sizes ", tensor.sizes());
  return tensor.view({ranks, tensor.numel() / ranks}).unbind(0);
}

std::vector<at::Tensor> splitRows(const at::Tensor& tensor, const std::vector<std::int64_t>& splits, int ranks) {
  if (splits.empty()) return equalParts(tensor, ranks);
  TORCH_CHECK_VALUE(static_cast<int>(splits.size()) == ranks, splits.size(), " split sizes for ", ranks, " ranks");
  return tensor.split_with_sizes(splits, 0);
}

/// What ranks tell each other of themselves.
struct Address {
  PeerRef group;
  TensorStore::Peer store;
};

/// All ranks' addresses, through the store in which they meet.
std::vector<Address> meet(c10d::Store& store, const Address& self, int rank, int size) {
  const auto key = [](int r) { return absl::StrCat("dtorch/rank/", r); };
  std::vector<std::uint8_t> bytes(sizeof(Address));
  std::memcpy(bytes.data(), &self, sizeof(Address));
  store.set(key(rank), bytes);
  std::vector<Address> all(static_cast<std::size_t>(size));
  for (int r = 0; r < size; ++r) {
    const std::vector<std::uint8_t> peer = store.get(key(r));  // waits for it
    TORCH_CHECK_WITH(DistBackendError, peer.size() == sizeof(Address), "rank ", r,
                     " runs another version of this backend");
    std::memcpy(&all[static_cast<std::size_t>(r)], peer.data(), sizeof(Address));
  }
  return all;
}

}  // namespace

class SameDeviceBackend::CallWork final : public c10d::Work {
 public:
  CallWork(int rank, c10d::OpType type, Tensors outputs) : Work(rank, type), outputs_(std::move(outputs)) {}

  void complete(const absl::Status& status) {
    finish(status.ok() ? nullptr : toException(status));
    c10::intrusive_ptr<c10::ivalue::Future> future;
    std::function<void(const absl::Status&)> next;
    {
      const std::lock_guard lock(mutex_);
      status_ = status;
      future = future_;
      next = std::exchange(next_, nullptr);
    }
    if (future) settle(*future);
    if (next) next(status);
  }
  /// Calls `next` once it is complete: now, or on the thread that completes it. Once.
  void then(std::function<void(const absl::Status&)> next) {
    absl::Status status;
    {
      const std::lock_guard lock(mutex_);
      if (!status_) {
        next_ = std::move(next);
        return;
      }
      status = *status_;
    }
    next(status);
  }
  /// Of a receive: who sent.
  void setSource(Rank source) { source_ = source; }
  int sourceRank() const override { return source_; }
  Tensors result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    c10::intrusive_ptr<c10::ivalue::Future> future;
    bool done = false;
    {
      const std::lock_guard lock(mutex_);
      if (future_) return future_;
      future = future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
      done = completed_;
    }
    if (done) settle(*future);
    return future;
  }

 private:
  void settle(c10::ivalue::Future& future) {
    if (exception_)
      future.setErrorIfNeeded(exception_);
    else if (!future.completed())
      future.markCompleted(c10::IValue(outputs_));
  }

  Tensors outputs_;
  Rank source_ = -1;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::optional<absl::Status> status_;
  std::function<void(const absl::Status&)> next_;
};

c10::intrusive_ptr<SameDeviceBackend> SameDeviceBackend::create(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                                int size, std::chrono::milliseconds timeout) {
  auto manager = ThreadGroupManager::create(rank, timeout);
  if (!manager.ok()) std::rethrow_exception(toException(manager.status()));
  auto tensors = TensorStore::create(rank, sharedHeap());
  if (!tensors.ok()) std::rethrow_exception(toException(tensors.status()));
  const std::vector<Address> addresses = meet(*store, {(*manager)->self(), (*tensors)->self()}, rank, size);
  std::vector<PeerRef> peers;
  std::vector<TensorStore::Peer> boards;
  std::vector<Rank> ranks;
  for (const Address& address : addresses) {
    peers.push_back(address.group);
    boards.push_back(address.store);
    ranks.push_back(address.group.rank);
  }
  if (absl::Status known = (*tensors)->setPeers(boards); !known.ok()) std::rethrow_exception(toException(known));
  (*manager)->setPeers(std::move(peers), 1);
  auto group = (*manager)->group(ranks);
  std::vector<Rank> others = ranks;
  std::erase(others, rank);
  if (!group.ok()) std::rethrow_exception(toException(group.status()));
  return c10::intrusive_ptr<SameDeviceBackend>::unsafe_steal_from_new(
      new SameDeviceBackend(rank, size, timeout, *std::move(manager), dynamic_cast<CpuThreadGroup&>(**group),
                            std::make_unique<PointToPoint>(*std::move(tensors), std::move(others))));
}

SameDeviceBackend::SameDeviceBackend(int rank, int size, std::chrono::milliseconds timeout,
                                     std::unique_ptr<ThreadGroupManager> manager, CpuThreadGroup& group,
                                     std::unique_ptr<PointToPoint> pointToPoint)
    : Backend(rank, size),
      timeout_(timeout),
      manager_(std::move(manager)),
      group_(group),
      pointToPoint_(std::move(pointToPoint)),
      thread_([this] { loop(); }) {
  pthread_setname_np(thread_.native_handle(), "dtorch-comm");
}

SameDeviceBackend::~SameDeviceBackend() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void SameDeviceBackend::setTimeout(std::chrono::milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  timeout_ = timeout;
}

void SameDeviceBackend::abort() {
  manager_->abort(absl::CancelledError("the process group was aborted"));
  pointToPoint_->abort();
}

std::chrono::milliseconds SameDeviceBackend::timeout() {
  const std::lock_guard lock(mutex_);
  return timeout_;
}

std::uint64_t SameDeviceBackend::getSequenceNumberForGroup() {
  const std::lock_guard lock(mutex_);
  return submitted_;
}

c10::intrusive_ptr<SameDeviceBackend::CallWork> SameDeviceBackend::newWork(c10d::OpType type, Tensors outputs) {
  auto work = c10::make_intrusive<CallWork>(getRank(), type, std::move(outputs));
  const std::lock_guard lock(mutex_);
  if (coalesced_) coalesced_->push_back(work);
  return work;
}

void SameDeviceBackend::startCoalescing() {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK_WITH(DistBackendError, !coalesced_, "startCoalescing() in a block of coalesced calls");
  coalesced_.emplace();
}

SameDeviceBackend::WorkPtr SameDeviceBackend::endCoalescing() {
  std::vector<c10::intrusive_ptr<CallWork>> parts;
  {
    const std::lock_guard lock(mutex_);
    TORCH_CHECK_WITH(DistBackendError, coalesced_, "endCoalescing() without startCoalescing()");
    parts = *std::exchange(coalesced_, std::nullopt);
  }
  Tensors outputs;
  for (const auto& part : parts) {
    const Tensors of = part->result();
    outputs.insert(outputs.end(), of.begin(), of.end());
  }
  struct Whole {
    std::mutex mutex;
    std::size_t open = 0;
    absl::Status status;
    c10::intrusive_ptr<CallWork> work;

    void close(const absl::Status& part) {
      {
        const std::lock_guard lock(mutex);
        status.Update(part);
        if (--open > 0) return;
      }
      work->complete(status);
    }
  };
  const auto whole = std::make_shared<Whole>();
  whole->open = parts.size() + 1;
  whole->work = c10::make_intrusive<CallWork>(getRank(), c10d::OpType::COALESCED, std::move(outputs));
  for (const auto& part : parts) part->then([whole](const absl::Status& status) { whole->close(status); });
  whole->close(absl::OkStatus());  // there may be no parts
  return whole->work;
}

SameDeviceBackend::WorkPtr SameDeviceBackend::submit(c10d::OpType type, Tensors outputs,
                                                     std::chrono::milliseconds timeout, bool async, Call call) {
  Job job{newWork(type, std::move(outputs)), std::move(call), timeout};
  const WorkPtr work = job.work;
  {
    const std::lock_guard lock(mutex_);
    ++submitted_;
    if (job.timeout == c10d::kUnsetTimeout) job.timeout = timeout_;
    if (async || busy_ || !jobs_.empty()) {
      jobs_.push_back(std::move(job));
      changed_.notify_all();
      return work;
    }
    busy_ = true;
  }
  run(job);
  return work;
}

void SameDeviceBackend::run(Job& job) {
  group_.setTimeout(job.timeout);
  const absl::Status status = job.call(group_);
  {
    const std::lock_guard lock(mutex_);
    busy_ = false;
    if (!jobs_.empty() || stopping_) changed_.notify_all();
  }
  job.work->complete(status);
}

void SameDeviceBackend::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !busy_ && (stopping_ || !jobs_.empty()); });
    if (jobs_.empty()) return;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    busy_ = true;
    lock.unlock();
    run(job);
    lock.lock();
  }
}

SameDeviceBackend::WorkPtr SameDeviceBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  return submit(c10d::OpType::BROADCAST, tensors, options.timeout, options.asyncOp,
                [tensors, root = options.rootRank](auto& group) {
                  return guarded(group,
                                 [&] { return group.broadcastInto(only(tensors), static_cast<int>(root), kTag); });
                });
}

SameDeviceBackend::WorkPtr SameDeviceBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return submit(c10d::OpType::ALLREDUCE, tensors, options.timeout, options.asyncOp,
                [tensors, op = options.reduceOp](auto& group) {
                  return guarded(group, [&] {
                    const at::Tensor& tensor = only(tensors);
                    return group.reduceInto(weighted(tensor, op), tensor, toReduction(op), -1, kTag);
                  });
                });
}

SameDeviceBackend::WorkPtr SameDeviceBackend::allreduce_coalesced(Tensors& tensors,
                                                                  const c10d::AllreduceCoalescedOptions& options) {
  return submit(c10d::OpType::ALLREDUCE_COALESCED, tensors, options.timeout, options.asyncOp,
                [tensors, op = options.reduceOp](auto& group) {
                  return oneByOne(group, tensors.size(), [&](std::size_t i) {
                    return group.reduceInto(weighted(tensors[i], op), tensors[i], toReduction(op), -1, kTag);
                  });
                });
}

SameDeviceBackend::WorkPtr SameDeviceBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  return submit(c10d::OpType::REDUCE, tensors, options.timeout, options.asyncOp,
                [tensors, op = options.reduceOp, root = options.rootRank](auto& group) {
                  return guarded(group, [&] {
                    const at::Tensor& tensor = only(tensors);
                    return group.reduceInto(weighted(tensor, op), tensor, toReduction(op), static_cast<int>(root),
                                            kTag);
                  });
                });
}

SameDeviceBackend::WorkPtr SameDeviceBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                        const c10d::AllgatherOptions& options) {
  return submit(c10d::OpType::ALLGATHER, outputs.empty() ? Tensors{} : outputs[0], options.timeout, options.asyncOp,
                [inputs, outputs](auto& group) {
                  return guarded(group, [&] { return group.gatherInto(only(inputs), only(outputs), -1, kTag); });
                });
}

SameDeviceBackend::WorkPtr SameDeviceBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                              const c10d::AllgatherOptions& options) {
  return submit(
      c10d::OpType::_ALLGATHER_BASE, {output}, options.timeout, options.asyncOp, [input, output](auto& group) {
        return guarded(group, [&] { return group.gatherInto(input, equalParts(output, group.size()), -1, kTag); });
      });
}

SameDeviceBackend::WorkPtr SameDeviceBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                              const c10d::AllgatherOptions& options) {
  return submit(c10d::OpType::COALESCED, outputs, options.timeout, options.asyncOp, [inputs, outputs](auto& group) {
    return oneByOne(group, inputs.size(), [&](std::size_t i) {
      return group.gatherInto(inputs[i], equalParts(oneFor(inputs, outputs)[i], group.size()), -1, kTag);
    });
  });
}

SameDeviceBackend::WorkPtr SameDeviceBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                     const c10d::GatherOptions& options) {
  const bool wanted = getRank() == options.rootRank;
  return submit(c10d::OpType::GATHER, wanted && !outputs.empty() ? outputs[0] : Tensors{}, options.timeout,
                options.asyncOp, [inputs, outputs, wanted, root = options.rootRank](auto& group) {
                  return guarded(group, [&] {
                    return group.gatherInto(only(inputs), wanted ? only(outputs) : Tensors{}, static_cast<int>(root),
                                            kTag);
                  });
                });
}

SameDeviceBackend::WorkPtr SameDeviceBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                      const c10d::ScatterOptions& options) {
  const bool gives = getRank() == options.rootRank;
  return submit(c10d::OpType::SCATTER, outputs, options.timeout, options.asyncOp,
                [outputs, inputs, gives, root = options.rootRank](auto& group) {
                  return guarded(group, [&] {
                    return group.scatterInto(gives ? only(inputs) : Tensors{}, only(outputs), static_cast<int>(root),
                                             kTag);
                  });
                });
}

SameDeviceBackend::WorkPtr SameDeviceBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                             const c10d::ReduceScatterOptions& options) {
  return submit(c10d::OpType::REDUCE_SCATTER, outputs, options.timeout, options.asyncOp,
                [outputs, inputs, op = options.reduceOp](auto& group) {
                  return guarded(group, [&] {
                    Tensors parts;
                    for (const at::Tensor& part : only(inputs)) parts.push_back(weighted(part, op));
                    return group.reduceScatterInto(parts, only(outputs), toReduction(op), kTag);
                  });
                });
}

SameDeviceBackend::WorkPtr SameDeviceBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                                   const c10d::ReduceScatterOptions& options) {
  return submit(c10d::OpType::_REDUCE_SCATTER_BASE, {output}, options.timeout, options.asyncOp,
                [output, input, op = options.reduceOp](auto& group) {
                  return guarded(group, [&] {
                    return group.reduceScatterInto(equalParts(weighted(input, op).contiguous(), group.size()), output,
                                                   toReduction(op), kTag);
                  });
                });
}

SameDeviceBackend::WorkPtr SameDeviceBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  return submit(c10d::OpType::COALESCED, outputs, options.timeout, options.asyncOp,
                [outputs, inputs, op = options.reduceOp](auto& group) {
                  return oneByOne(group, inputs.size(), [&](std::size_t i) {
                    return group.reduceScatterInto(equalParts(weighted(inputs[i], op).contiguous(), group.size()),
                                                   oneFor(inputs, outputs)[i], toReduction(op), kTag);
                  });
                });
}

SameDeviceBackend::WorkPtr SameDeviceBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                            std::vector<std::int64_t>& outputSplits,
                                                            std::vector<std::int64_t>& inputSplits,
                                                            const c10d::AllToAllOptions& options) {
  return submit(c10d::OpType::ALLTOALL_BASE, {output}, options.timeout, options.asyncOp,
                [output, input, outputSplits, inputSplits](auto& group) {
                  return guarded(group, [&] {
                    return group.allToAllInto(splitRows(input.contiguous(), inputSplits, group.size()),
                                              splitRows(output, outputSplits, group.size()), kTag);
                  });
                });
}

SameDeviceBackend::WorkPtr SameDeviceBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                                       const c10d::AllToAllOptions& options) {
  return submit(c10d::OpType::ALLTOALL, outputs, options.timeout, options.asyncOp,
                [inputs, outputs](auto& group) { return group.allToAllInto(inputs, outputs, kTag); });
}

SameDeviceBackend::WorkPtr SameDeviceBackend::send(Tensors& tensors, int to, int tag) {
  const at::Tensor tensor = only(tensors);
  TORCH_CHECK_VALUE(to >= 0 && to < getSize() && to != getRank(), "rank ", getRank(), " of ", getSize(),
                    " cannot send to rank ", to);
  auto work = newWork(c10d::OpType::SEND, tensors);
  pointToPoint_->send(tensor, to, tag, timeout(), [work](const absl::Status& status, Rank) { work->complete(status); });
  return work;
}

SameDeviceBackend::WorkPtr SameDeviceBackend::recv(Tensors& tensors, int from, int tag) {
  TORCH_CHECK_VALUE(from >= 0 && from < getSize() && from != getRank(), "rank ", getRank(), " of ", getSize(),
                    " cannot receive from rank ", from);
  return receive(tensors, from, tag);
}

SameDeviceBackend::WorkPtr SameDeviceBackend::recvAnysource(Tensors& tensors, int tag) {
  return receive(tensors, std::nullopt, tag);
}

SameDeviceBackend::WorkPtr SameDeviceBackend::receive(Tensors& tensors, std::optional<Rank> from, int tag) {
  const at::Tensor tensor = only(tensors);
  const auto type = from ? c10d::OpType::RECV : c10d::OpType::RECVANYSOURCE;
  auto work = newWork(type, tensors);
  pointToPoint_->receive(tensor, from, tag, timeout(), [work](const absl::Status& status, Rank source) {
    work->setSource(source);
    work->complete(status);
  });
  return work;
}

SameDeviceBackend::WorkPtr SameDeviceBackend::barrier(const c10d::BarrierOptions& options) {
  return submit(c10d::OpType::BARRIER, {}, options.timeout, options.asyncOp,
                [](auto& group) { return group.barrier(kTag); });
}

}  // namespace dtorch
