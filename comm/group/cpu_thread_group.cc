#include "comm/group/cpu_thread_group.h"

#include <ATen/ops/empty.h>

#include <algorithm>
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

absl::Status undefined() { return absl::InvalidArgumentError("a collective was given an undefined tensor, or none"); }

absl::Status sizesDiffer(const at::Tensor& a, const at::Tensor& b) {
  return absl::InvalidArgumentError(
      absl::StrCat("a collective would write ", a.numel(), " elements to an output of ", b.numel()));
}

absl::Status notOneForEach(absl::string_view what, std::size_t count, int ranks) {
  return absl::InvalidArgumentError(absl::StrCat(count, " ", what, " of a collective in a group of ", ranks, " ranks"));
}

absl::Status checkRoot(int root, int ranks) {
  if (root >= 0 && root < ranks) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("root ", root, " of a group of ", ranks, " ranks"));
}

/// A contiguous tensor of `shape`.
absl::StatusOr<at::Tensor> newTensor(c10::IntArrayRef shape, const at::Tensor& like) {
  try {
    return at::empty(shape, like.options().memory_format(at::MemoryFormat::Contiguous));
  } catch (const std::exception& e) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot allocate the result of a collective: ", e.what()));
  }
}

absl::StatusOr<at::Tensor> contiguous(const at::Tensor& tensor) {
  if (!tensor.defined()) return undefined();
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
                               std::shared_ptr<PeerMemory> memory, std::chrono::milliseconds timeout)
    : segment_(std::move(segment)),
      exchange_(Arena(segment_.data()), rank, std::move(watches), std::move(memory), timeout) {}

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

/// Contiguous stand-ins of a call's tensors.
struct CpuThreadGroup::Views {
  Call call;
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;

  ConstRows input(std::size_t i) const { return allOf(inputs[i]); }
  Rows output(std::size_t i) const { return contiguousRows(mutableBytesOf(outputs[i]), outputs[i].nbytes()); }
  std::vector<ConstRows> allInputs() const {
    std::vector<ConstRows> rows;
    for (std::size_t i = 0; i < inputs.size(); ++i) rows.push_back(input(i));
    return rows;
  }
  std::vector<Rows> allOutputs() const {
    std::vector<Rows> rows;
    for (std::size_t i = 0; i < outputs.size(); ++i) rows.push_back(output(i));
    return rows;
  }
};

template <typename Body>
absl::Status CpuThreadGroup::run(Call call, const std::vector<at::Tensor>& inputs,
                                 const std::vector<at::Tensor>& outputs, Body body) {
  Views views;
  const at::Tensor* first = nullptr;
  for (const at::Tensor& input : inputs) {
    auto view = contiguous(input);
    if (!view.ok()) return failWith(view.status(), call);
    views.inputs.push_back(*std::move(view));
  }
  bool copiesBack = false;
  for (const at::Tensor& output : outputs) {
    auto view = output.is_contiguous() ? contiguous(output) : newTensor(output.sizes(), output);
    if (!view.ok()) return failWith(view.status(), call);
    views.outputs.push_back(*std::move(view));
    copiesBack = copiesBack || !output.is_contiguous();
  }
  for (const std::vector<at::Tensor>* side : {&views.inputs, &views.outputs}) {
    for (const at::Tensor& tensor : *side) {
      if (first == nullptr) first = &tensor;
      if (tensor.scalar_type() != first->scalar_type()) {
        return failWith(absl::InvalidArgumentError(absl::StrCat("the tensors of one collective are of dtypes ",
                                                                c10::toString(first->scalar_type()), " and ",
                                                                c10::toString(tensor.scalar_type()))),
                        call);
      }
    }
  }
  if (first != nullptr) {
    auto dtype = fromTorch(first->scalar_type());
    if (!dtype.ok()) return failWith(dtype.status(), call);
    call.dtype = *dtype;
  }
  views.call = call;
  const absl::Status status = ended(body(views));
  if (!status.ok() || !copiesBack) return status;
  try {
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].is_contiguous()) outputs[i].copy_(views.outputs[i]);
    }
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("copying the result of a collective: ", e.what()));
  }
  return absl::OkStatus();
}

absl::Status CpuThreadGroup::reduceInto(const at::Tensor& input, const at::Tensor& output, Reduction op, int root,
                                        const CallTag& tag) {
  Call call = callOf(root < 0 ? CallKind::kAllReduce : CallKind::kReduce, tag);
  call.reduction = op;
  call.root = root;
  const bool wanted = root < 0 || root == rank();
  return run(call, {input}, wanted ? std::vector<at::Tensor>{output} : std::vector<at::Tensor>{}, [&](Views& views) {
    const at::Tensor& in = views.inputs[0];
    if (absl::Status valid = checkRoot(root, size()); root >= 0 && !valid.ok()) return failWith(valid, views.call);
    const auto kernel = reduceKernel(views.call.dtype, op);
    if (!kernel.ok()) return failWith(kernel.status(), views.call);
    if (wanted && views.outputs[0].numel() != in.numel())
      return failWith(sizesDiffer(in, views.outputs[0]), views.call);
    views.call.setShape(in.sizes().data(), in.sizes().size());
    std::byte* out = wanted ? mutableBytesOf(views.outputs[0]) : nullptr;
    return exchange_.allReduce(views.call, bytesOf(in), out, in.nbytes(), *kernel, root);
  });
}

absl::Status CpuThreadGroup::gatherInto(const at::Tensor& input, const std::vector<at::Tensor>& outputs, int root,
                                        const CallTag& tag) {
  Call call = callOf(root < 0 ? CallKind::kAllGather : CallKind::kGather, tag);
  call.root = root;
  const bool wanted = root < 0 || root == rank();
  return run(call, {input}, wanted ? outputs : std::vector<at::Tensor>{}, [&](Views& views) {
    if (absl::Status valid = checkRoot(root, size()); root >= 0 && !valid.ok()) return failWith(valid, views.call);
    if (wanted && static_cast<int>(views.outputs.size()) != size()) {
      return failWith(notOneForEach("outputs", views.outputs.size(), size()), views.call);
    }
    const auto self = static_cast<std::size_t>(rank());
    if (wanted && views.outputs[self].numel() != views.inputs[0].numel()) {
      return failWith(sizesDiffer(views.inputs[0], views.outputs[self]), views.call);
    }
    views.call.dims = 1;
    views.call.shape[0] = -1;
    if (root < 0) {
      for (const at::Tensor& output : views.outputs) views.call.mix({output.numel()});
      return exchange_.spread(views.call, views.input(0), views.allOutputs());
    }
    std::vector<ConstRows> outgoing(static_cast<std::size_t>(size()));
    outgoing[static_cast<std::size_t>(root)] = views.input(0);
    const std::vector<Rows> nothing(static_cast<std::size_t>(size()));
    return exchange_.swap(views.call, outgoing, wanted ? views.allOutputs() : nothing);
  });
}

absl::Status CpuThreadGroup::scatterInto(const std::vector<at::Tensor>& inputs, const at::Tensor& output, int root,
                                         const CallTag& tag) {
  Call call = callOf(CallKind::kScatter, tag);
  call.root = root;
  const bool source = root == rank();
  return run(call, source ? inputs : std::vector<at::Tensor>{}, {output}, [&](Views& views) {
    if (absl::Status valid = checkRoot(root, size()); !valid.ok()) return failWith(valid, views.call);
    const auto self = static_cast<std::size_t>(rank());
    if (source && static_cast<int>(views.inputs.size()) != size()) {
      return failWith(notOneForEach("inputs", views.inputs.size(), size()), views.call);
    }
    if (source && views.inputs[self].numel() != output.numel()) {
      return failWith(sizesDiffer(views.inputs[self], output), views.call);
    }
    views.call.dims = 1;
    views.call.shape[0] = -1;
    std::vector<Rows> incoming(static_cast<std::size_t>(size()));
    incoming[static_cast<std::size_t>(root)] = views.output(0);
    const std::vector<ConstRows> nothing(static_cast<std::size_t>(size()));
    return exchange_.swap(views.call, source ? views.allInputs() : nothing, incoming);
  });
}

absl::Status CpuThreadGroup::reduceScatterInto(const std::vector<at::Tensor>& inputs, const at::Tensor& output,
                                               Reduction op, const CallTag& tag) {
  Call call = callOf(CallKind::kReduceScatter, tag);
  call.reduction = op;
  return run(call, inputs, {output}, [&](Views& views) {
    const auto kernel = reduceKernel(views.call.dtype, op);
    if (!kernel.ok()) return failWith(kernel.status(), views.call);
    if (static_cast<int>(views.inputs.size()) != size()) {
      return failWith(notOneForEach("inputs", views.inputs.size(), size()), views.call);
    }
    const auto self = static_cast<std::size_t>(rank());
    if (views.inputs[self].numel() != output.numel())
      return failWith(sizesDiffer(views.inputs[self], output), views.call);
    std::vector<std::int64_t> numels;
    for (const at::Tensor& input : views.inputs) numels.push_back(input.numel());
    views.call.setShape(numels.data(), numels.size());
    return exchange_.reduceScatter(views.call, views.allInputs(), mutableBytesOf(views.outputs[0]), *kernel);
  });
}

absl::Status CpuThreadGroup::allToAllInto(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs,
                                          const CallTag& tag) {
  return run(callOf(CallKind::kAllToAll, tag), inputs, outputs, [&](Views& views) {
    if (static_cast<int>(inputs.size()) != size() || inputs.size() != outputs.size()) {
      return failWith(notOneForEach("inputs and outputs", std::min(inputs.size(), outputs.size()), size()), views.call);
    }
    const auto self = static_cast<std::size_t>(rank());
    if (inputs[self].numel() != outputs[self].numel())
      return failWith(sizesDiffer(inputs[self], outputs[self]), views.call);
    views.call.dims = 1;
    views.call.shape[0] = -1;
    return exchange_.swap(views.call, views.allInputs(), views.allOutputs());
  });
}

absl::Status CpuThreadGroup::broadcastInto(const at::Tensor& tensor, int root, const CallTag& tag) {
  Call call = callOf(CallKind::kBroadcast, tag);
  call.root = root;
  const bool source = root == rank();
  return run(call, {tensor}, source ? std::vector<at::Tensor>{} : std::vector<at::Tensor>{tensor}, [&](Views& views) {
    if (absl::Status valid = checkRoot(root, size()); !valid.ok()) return failWith(valid, views.call);
    views.call.setShape(tensor.sizes().data(), tensor.sizes().size());
    std::vector<Rows> incoming(static_cast<std::size_t>(size()));
    if (!source) incoming[static_cast<std::size_t>(root)] = views.output(0);
    return exchange_.spread(views.call, source ? views.input(0) : ConstRows{}, incoming);
  });
}

absl::StatusOr<at::Tensor> CpuThreadGroup::allReduce(const at::Tensor& input, ReduceOp op, const CallTag& tag) {
  Call call = callOf(CallKind::kAllReduce, tag);
  call.reduction = static_cast<Reduction>(op);
  if (!input.defined()) return failWith(undefined(), call);
  auto out = newTensor(input.sizes(), input);
  if (!out.ok()) return failWith(out.status(), call);
  if (absl::Status status = reduceInto(input, *out, call.reduction, -1, tag); !status.ok()) return status;
  return out;
}

absl::StatusOr<at::Tensor> CpuThreadGroup::allGather(const at::Tensor& input, int dim,
                                                     const std::vector<std::int64_t>& lengths, const CallTag& tag) {
  Call call = callOf(CallKind::kAllGather, tag);
  call.dim = dim;
  at::Tensor out;
  const absl::Status status = run(call, {input}, {}, [&](Views& views) {
    const at::Tensor& in = views.inputs[0];
    if (absl::Status split = checkSplit(in, dim, lengths, size()); !split.ok()) return failWith(split, views.call);
    std::vector<std::int64_t> shape = in.sizes().vec();
    const std::int64_t own = lengths[static_cast<std::size_t>(rank())];
    if (in.size(dim) != own) {
      return failWith(
          absl::InvalidArgumentError(absl::StrCat("rank ", rank(), " of the group gathers ", in.size(dim),
                                                  " indices of dim ", dim, " where ", own, " were announced")),
          views.call);
    }
    shape[static_cast<std::size_t>(dim)] = sum(lengths);
    views.call.setShape(shape.data(), shape.size());
    views.call.mix(lengths);
    auto made = newTensor(shape, in);
    if (!made.ok()) return failWith(made.status(), views.call);
    out = *std::move(made);
    std::vector<Rows> incoming;
    std::int64_t offset = 0;
    for (const std::int64_t length : lengths) {
      incoming.push_back(sliceOf(mutableBytesOf(out), out, dim, offset, length));
      offset += length;
    }
    return exchange_.spread(views.call, views.input(0), incoming);
  });
  if (!status.ok()) return status;
  return out;
}

absl::StatusOr<at::Tensor> CpuThreadGroup::reduceScatter(const at::Tensor& input, ReduceOp op, int dim,
                                                         const std::vector<std::int64_t>& lengths, const CallTag& tag) {
  Call call = callOf(CallKind::kReduceScatter, tag);
  call.dim = dim;
  call.reduction = static_cast<Reduction>(op);
  at::Tensor out;
  const absl::Status status = run(call, {input}, {}, [&](Views& views) {
    const at::Tensor& in = views.inputs[0];
    const auto kernel = reduceKernel(views.call.dtype, views.call.reduction);
    if (!kernel.ok()) return failWith(kernel.status(), views.call);
    if (absl::Status split = checkSplit(in, dim, lengths, size()); !split.ok()) return failWith(split, views.call);
    if (sum(lengths) != in.size(dim)) {
      return failWith(
          absl::InvalidArgumentError(absl::StrCat("lengths [", absl::StrJoin(lengths, ", "), "] do not add up to ",
                                                  in.size(dim), ", the extent of dim ", dim)),
          views.call);
    }
    views.call.setShape(in.sizes().data(), in.sizes().size());
    views.call.mix(lengths);
    std::vector<std::int64_t> shape = in.sizes().vec();
    shape[static_cast<std::size_t>(dim)] = lengths[static_cast<std::size_t>(rank())];
    auto made = newTensor(shape, in);
    if (!made.ok()) return failWith(made.status(), views.call);
    out = *std::move(made);
    std::vector<ConstRows> outgoing;
    std::int64_t offset = 0;
    for (const std::int64_t length : lengths) {
      outgoing.push_back(sliceOf(bytesOf(in), in, dim, offset, length));
      offset += length;
    }
    return exchange_.reduceScatter(views.call, outgoing, mutableBytesOf(out), *kernel);
  });
  if (!status.ok()) return status;
  return out;
}

absl::StatusOr<std::vector<at::Tensor>> CpuThreadGroup::allToAll(const std::vector<at::Tensor>& inputs,
                                                                 const std::vector<std::vector<std::int64_t>>& shapes,
                                                                 const CallTag& tag) {
  const Call call = callOf(CallKind::kAllToAll, tag);
  if (inputs.empty() || !inputs[0].defined()) return failWith(undefined(), call);
  std::vector<at::Tensor> outputs;
  for (const std::vector<std::int64_t>& shape : shapes) {
    auto made = newTensor(shape, inputs[0]);
    if (!made.ok()) return failWith(made.status(), call);
    outputs.push_back(*std::move(made));
  }
  if (absl::Status status = allToAllInto(inputs, outputs, tag); !status.ok()) return status;
  return outputs;
}

absl::StatusOr<at::Tensor> CpuThreadGroup::broadcast(const at::Tensor& input, int root, const CallTag& tag) {
  if (!input.defined()) return failWith(undefined(), callOf(CallKind::kBroadcast, tag));
  absl::StatusOr<at::Tensor> out = newTensor(input.sizes(), input);
  if (!out.ok()) return failWith(out.status(), callOf(CallKind::kBroadcast, tag));
  if (rank() == root) {
    // The result is a tensor of its own at the root too.
    try {
      out->copy_(input);
    } catch (const std::exception& e) {
      return failWith(absl::InternalError(absl::StrCat("copying the input of a broadcast: ", e.what())),
                      callOf(CallKind::kBroadcast, tag));
    }
  }
  if (absl::Status status = broadcastInto(*out, root, tag); !status.ok()) return status;
  return out;
}

absl::Status CpuThreadGroup::barrier(const CallTag& tag) {
  return ended(exchange_.barrier(callOf(CallKind::kBarrier, tag)));
}

absl::Status CpuThreadGroup::fail(const absl::Status& why, const CallTag& tag) {
  return failWith(why, callOf(CallKind::kBarrier, tag));
}

absl::Status CpuThreadGroup::broken() const { return exchange_.lockstep().broken(); }

void CpuThreadGroup::abort(const absl::Status& why) {
  {
    const std::lock_guard lock(mutex_);
    if (aborted_.ok()) aborted_ = why;
  }
  exchange_.lockstep().breakGroup(absl::AbortedError(
      absl::StrCat("rank ", Arena(segment_.data()).rankAt(rank()), " aborted the group: ", why.message())));
}

}  // namespace dtorch
