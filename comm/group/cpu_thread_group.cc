#include "comm/group/cpu_thread_group.h"

#include <ATen/ops/empty.h>

#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/group/reduce_kernels.h"
#include "dispatch/dtype.h"

namespace dtorch {
namespace {

/// Thread: any, so long as nobody writes the tensor.
const std::byte* bytesOf(const at::Tensor& tensor) { return static_cast<const std::byte*>(tensor.const_data_ptr()); }
std::byte* mutableBytesOf(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.mutable_data_ptr()); }

ConstRows allOf(const at::Tensor& tensor) { return contiguousRows(bytesOf(tensor), tensor.nbytes()); }

/// The bytes of indices [offset, offset + length) of dimension `dim`.
template <typename Byte>
BasicRows<Byte> sliceOf(Byte* data, const at::Tensor& tensor, int dim, std::int64_t offset, std::int64_t length) {
  std::size_t rows = 1;
  auto unit = static_cast<std::size_t>(tensor.element_size());
  for (int d = 0; d < dim; ++d) rows *= static_cast<std::size_t>(tensor.size(d));
  for (std::int64_t d = dim + 1; d < tensor.dim(); ++d) unit *= static_cast<std::size_t>(tensor.size(d));
  return {data + static_cast<std::size_t>(offset) * unit, rows, static_cast<std::size_t>(length) * unit,
          static_cast<std::size_t>(tensor.size(dim)) * unit};
}

/// Kept out of line: exceptions of LibTorch become Status here. They concern memory alone, shapes are checked before.
absl::StatusOr<at::Tensor> newTensor(c10::IntArrayRef shape, const at::Tensor& like) {
  try {
    return at::empty(shape, like.options());
  } catch (const std::exception& e) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot allocate the result of a collective: ", e.what()));
  }
}

absl::StatusOr<at::Tensor> contiguous(const at::Tensor& tensor) {
  if (!tensor.defined()) return absl::InvalidArgumentError("a collective was given an undefined tensor");
  if (!tensor.is_cpu() || tensor.layout() != c10::kStrided) {
    return absl::InvalidArgumentError("a collective of CPU ranks was given a tensor that is no strided CPU tensor");
  }
  try {
    return tensor.resolve_conj().resolve_neg().contiguous();
  } catch (const std::exception& e) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot make the input of a collective contiguous: ", e.what()));
  }
}

Call callOf(CallKind kind, const CallTag& tag) {
  Call call;
  call.kind = kind;
  call.operatorNumber = tag.operatorNumber;
  call.setName(tag.name);
  return call;
}

/// INVALID_ARGUMENT unless `lengths` are as many as ranks, not negative, and dim exists.
absl::Status checkSplit(const at::Tensor& tensor, int dim, const std::vector<std::int64_t>& lengths, int ranks) {
  if (dim < 0 || dim >= tensor.dim()) {
    return absl::InvalidArgumentError(absl::StrCat("dim ", dim, " of a tensor of ", tensor.dim(), " dimensions"));
  }
  const bool negative = std::any_of(lengths.begin(), lengths.end(), [](std::int64_t l) { return l < 0; });
  if (static_cast<int>(lengths.size()) != ranks || negative) {
    return absl::InvalidArgumentError(
        absl::StrCat("lengths [", absl::StrJoin(lengths, ", "), "] for a group of ", ranks, " ranks"));
  }
  return absl::OkStatus();
}

std::int64_t sum(const std::vector<std::int64_t>& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

}  // namespace

CpuThreadGroup::CpuThreadGroup(Segment segment, int rank, std::vector<ProcessWatch> watches,
                               std::chrono::milliseconds timeout)
    : segment_(std::move(segment)), exchange_(Arena(segment_.data()), rank, std::move(watches), timeout) {}

CpuThreadGroup::~CpuThreadGroup() {
  // A rank that is still in a call, or comes with another one, must not wait for this one.
  exchange_.lockstep().breakGroup(
      absl::UnavailableError(absl::StrCat("rank ", Arena(segment_.data()).rankAt(rank()), " left the group")));
}

absl::Status CpuThreadGroup::ended(const absl::Status& status) {
  if (status.ok()) return status;
  const std::lock_guard lock(mutex_);
  return aborted_.ok() ? status : aborted_;
}

absl::Status CpuThreadGroup::failWith(const absl::Status& why, const Call& call) {
  const absl::Status status = ended(exchange_.fail(why, call));
  return status.ok() ? why : status;
}

absl::StatusOr<at::Tensor> CpuThreadGroup::allReduce(const at::Tensor& input, ReduceOp op, const CallTag& tag) {
  Call call = callOf(CallKind::kAllReduce, tag);
  call.reduction = static_cast<Reduction>(op);
  auto in = contiguous(input);
  if (!in.ok()) return failWith(in.status(), call);
  auto dtype = fromTorch(in->scalar_type());
  if (!dtype.ok()) return failWith(dtype.status(), call);
  call.dtype = *dtype;
  call.setShape(in->sizes().data(), in->sizes().size());
  const auto kernel = reduceKernel(*dtype, call.reduction);
  if (!kernel.ok()) return failWith(kernel.status(), call);
  auto out = newTensor(in->sizes(), *in);
  if (!out.ok()) return failWith(out.status(), call);
  const absl::Status status =
      ended(exchange_.allReduce(call, bytesOf(*in), mutableBytesOf(*out), in->nbytes(), *kernel, -1));
  if (!status.ok()) return status;
  return out;
}

absl::StatusOr<at::Tensor> CpuThreadGroup::allGather(const at::Tensor& input, int dim,
                                                     const std::vector<std::int64_t>& lengths, const CallTag& tag) {
  Call call = callOf(CallKind::kAllGather, tag);
  call.dim = dim;
  auto in = contiguous(input);
  if (!in.ok()) return failWith(in.status(), call);
  auto dtype = fromTorch(in->scalar_type());
  if (!dtype.ok()) return failWith(dtype.status(), call);
  call.dtype = *dtype;
  if (absl::Status split = checkSplit(*in, dim, lengths, size()); !split.ok()) return failWith(split, call);
  std::vector<std::int64_t> shape = in->sizes().vec();
  const auto self = static_cast<std::size_t>(rank());
  const auto axis = static_cast<std::size_t>(dim);
  if (shape[axis] != lengths[self]) {
    return failWith(absl::InvalidArgumentError(absl::StrCat("rank ", rank(), " of the group gathers ", shape[axis],
                                                            " indices of dim ", dim, " where ", lengths[self],
                                                            " were announced")),
                    call);
  }
  shape[axis] = sum(lengths);
  call.setShape(shape.data(), shape.size());
  call.mix(lengths);
  auto out = newTensor(shape, *in);
  if (!out.ok()) return failWith(out.status(), call);
  std::vector<Rows> incoming;
  std::int64_t offset = 0;
  for (const std::int64_t length : lengths) {
    incoming.push_back(sliceOf(mutableBytesOf(*out), *out, dim, offset, length));
    offset += length;
  }
  const absl::Status status = ended(exchange_.spread(call, allOf(*in), incoming));
  if (!status.ok()) return status;
  return out;
}

absl::StatusOr<at::Tensor> CpuThreadGroup::reduceScatter(const at::Tensor& input, ReduceOp op, int dim,
                                                         const std::vector<std::int64_t>& lengths, const CallTag& tag) {
  Call call = callOf(CallKind::kReduceScatter, tag);
  call.dim = dim;
  call.reduction = static_cast<Reduction>(op);
  auto in = contiguous(input);
  if (!in.ok()) return failWith(in.status(), call);
  auto dtype = fromTorch(in->scalar_type());
  if (!dtype.ok()) return failWith(dtype.status(), call);
  call.dtype = *dtype;
  const auto kernel = reduceKernel(*dtype, call.reduction);
  if (!kernel.ok()) return failWith(kernel.status(), call);
  if (absl::Status split = checkSplit(*in, dim, lengths, size()); !split.ok()) return failWith(split, call);
  if (sum(lengths) != in->size(dim)) {
    return failWith(absl::InvalidArgumentError(absl::StrCat("lengths [", absl::StrJoin(lengths, ", "), "] do not add up to ",
                                                            in->size(dim), ", the extent of dim ", dim)),
                    call);
  }
  call.setShape(in->sizes().data(), in->sizes().size());
  call.mix(lengths);
  std::vector<std::int64_t> shape = in->sizes().vec();
  shape[static_cast<std::size_t>(dim)] = lengths[static_cast<std::size_t>(rank())];
  auto out = newTensor(shape, *in);
  if (!out.ok()) return failWith(out.status(), call);
  std::vector<ConstRows> outgoing;
  std::int64_t offset = 0;
  for (const std::int64_t length : lengths) {
    outgoing.push_back(sliceOf(bytesOf(*in), *in, dim, offset, length));
    offset += length;
  }
  const absl::Status status = ended(exchange_.reduceScatter(call, outgoing, mutableBytesOf(*out), *kernel));
  if (!status.ok()) return status;
  return out;
}

absl::StatusOr<std::vector<at::Tensor>> CpuThreadGroup::allToAll(const std::vector<at::Tensor>& inputs,
                                                                 const std::vector<std::vector<std::int64_t>>& shapes,
                                                                 const CallTag& tag) {
  Call call = callOf(CallKind::kAllToAll, tag);
  const auto ranks = static_cast<std::size_t>(size());
  if (inputs.size() != ranks || shapes.size() != ranks) {
    return failWith(absl::InvalidArgumentError(absl::StrCat("all_to_all of ", inputs.size(), " inputs and ", shapes.size(),
                                                            " shapes in a group of ", ranks, " ranks")),
                    call);
  }
  std::vector<at::Tensor> in(ranks);
  std::vector<at::Tensor> out(ranks);
  std::vector<ConstRows> outgoing(ranks);
  std::vector<Rows> incoming(ranks);
  for (std::size_t r = 0; r < ranks; ++r) {
    auto each = contiguous(inputs[r]);
    if (!each.ok()) return failWith(each.status(), call);
    in[r] = *std::move(each);
    if (in[r].scalar_type() != in[0].scalar_type()) {
      return failWith(absl::InvalidArgumentError("the inputs of an all_to_all differ in dtype"), call);
    }
    auto result = newTensor(shapes[r], in[r]);
    if (!result.ok()) return failWith(result.status(), call);
    out[r] = *std::move(result);
    outgoing[r] = allOf(in[r]);
    incoming[r] = contiguousRows(mutableBytesOf(out[r]), out[r].nbytes());
  }
  auto dtype = fromTorch(in[0].scalar_type());
  if (!dtype.ok()) return failWith(dtype.status(), call);
  call.dtype = *dtype;
  call.dims = 1;
  call.shape[0] = -1;
  const std::size_t self = static_cast<std::size_t>(rank());
  if (in[self].sizes() != c10::IntArrayRef(shapes[self])) {
    return failWith(absl::InvalidArgumentError("an all_to_all sends its own rank another shape than it expects"), call);
  }
  const absl::Status status = ended(exchange_.swap(call, outgoing, incoming));
  if (!status.ok()) return status;
  return out;
}

absl::StatusOr<at::Tensor> CpuThreadGroup::broadcast(const at::Tensor& input, int root, const CallTag& tag) {
  Call call = callOf(CallKind::kBroadcast, tag);
  call.root = root;
  auto in = contiguous(input);
  if (!in.ok()) return failWith(in.status(), call);
  auto dtype = fromTorch(in->scalar_type());
  if (!dtype.ok()) return failWith(dtype.status(), call);
  call.dtype = *dtype;
  call.setShape(in->sizes().data(), in->sizes().size());
  if (root < 0 || root >= size()) {
    return failWith(absl::InvalidArgumentError(absl::StrCat("root ", root, " of a group of ", size(), " ranks")), call);
  }
  auto out = newTensor(in->sizes(), *in);
  if (!out.ok()) return failWith(out.status(), call);
  std::vector<Rows> incoming(static_cast<std::size_t>(size()));
  incoming[static_cast<std::size_t>(root)] = contiguousRows(mutableBytesOf(*out), out->nbytes());
  const absl::Status status = ended(exchange_.spread(call, rank() == root ? allOf(*in) : ConstRows{}, incoming));
  if (!status.ok()) return status;
  return out;
}

absl::Status CpuThreadGroup::barrier(const CallTag& tag) {
  return ended(exchange_.barrier(callOf(CallKind::kBarrier, tag)));
}

absl::Status CpuThreadGroup::fail(const absl::Status& why, const CallTag& tag) {
  return failWith(why, callOf(CallKind::kBarrier, tag));
}

void CpuThreadGroup::abort(const absl::Status& why) {
  {
    const std::lock_guard lock(mutex_);
    if (aborted_.ok()) aborted_ = why;
  }
  exchange_.lockstep().breakGroup(absl::AbortedError(
      absl::StrCat("rank ", Arena(segment_.data()).rankAt(rank()), " aborted the group: ", why.message())));
}

}  // namespace dtorch
