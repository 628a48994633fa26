#include "comm/placement/convert.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>

#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/conversion.h"
#include "core/shard.h"

namespace dtorch {
namespace {

template <typename T>
c10::Scalar extreme(bool largest) {
  return largest ? std::numeric_limits<T>::max() : std::numeric_limits<T>::lowest();
}

/// The value that changes nothing when it is combined by `op`; nullopt where there is none.
std::optional<c10::Scalar> neutral(c10::ScalarType type, ReduceOp op) {
  if (op == ReduceOp::kSum) return c10::Scalar(0);
  if (op == ReduceOp::kProduct) return c10::Scalar(1);
  if (op == ReduceOp::kAvg || c10::isComplexType(type)) return std::nullopt;
  const bool largest = op == ReduceOp::kMin;
  const double infinity = std::numeric_limits<double>::infinity();
  switch (type) {
    case c10::ScalarType::Bool:
      return c10::Scalar(largest);
    case c10::ScalarType::Byte:
      return extreme<std::uint8_t>(largest);
    case c10::ScalarType::Char:
      return extreme<std::int8_t>(largest);
    case c10::ScalarType::UInt16:
      return extreme<std::uint16_t>(largest);
    case c10::ScalarType::Short:
      return extreme<std::int16_t>(largest);
    case c10::ScalarType::UInt32:
      return extreme<std::uint32_t>(largest);
    case c10::ScalarType::Int:
      return extreme<std::int32_t>(largest);
    case c10::ScalarType::UInt64:
      return extreme<std::uint64_t>(largest);
    case c10::ScalarType::Long:
      return extreme<std::int64_t>(largest);
    case c10::ScalarType::Half:
    case c10::ScalarType::BFloat16:
    case c10::ScalarType::Float:
    case c10::ScalarType::Double:
      return c10::Scalar(largest ? infinity : -infinity);
    default:
      return std::nullopt;  // float8 has no infinity in all its forms
  }
}

/// Runs the steps of one conversion on this rank. After a failure it goes on as a failed rank, so that groups along
/// other mesh dimensions do not wait for it.
class Conversion {
 public:
  Conversion(const std::vector<std::int64_t>& shape, const ConvertContext& context)
      : shape_(shape), context_(context) {}

  absl::StatusOr<at::Tensor> run(absl::StatusOr<at::Tensor> local, const std::vector<ConversionStep>& steps) const {
    for (const ConversionStep& step : steps) {
      absl::StatusOr<at::Tensor> next = local.ok() ? guarded(*local, step) : failed(local.status(), step);
      local = std::move(next);
    }
    return local;
  }

 private:
  absl::StatusOr<at::Tensor> guarded(const at::Tensor& local, const ConversionStep& step) const {
    try {
      return take(local, step);
    } catch (const std::exception& e) {
      return failed(absl::ResourceExhaustedError(
                        absl::StrCat("converting ", step.from.toString(), " to ", step.to.toString(), ": ", e.what())),
                    step);
    }
  }

  absl::StatusOr<at::Tensor> failed(const absl::Status& why, const ConversionStep& step) const {
    if (!step.communicates() || extent(step) == 1) return why;
    auto group = groupOf(step);
    if (!group.ok()) return group.status();
    return (*group)->fail(why, context_.tag);
  }

  absl::StatusOr<at::Tensor> take(const at::Tensor& local, const ConversionStep& step) const {
    const Placement& from = step.from;
    const Placement& to = step.to;
    if (from.isReplicate() && to.isShard()) {
      const ShardRange mine = shardRange(local.size(to.dim()), extent(step), index(step));
      return local.narrow(to.dim(), mine.offset, mine.length).clone(at::MemoryFormat::Contiguous);
    }
    if (to.isPartial()) return toPartial(local, step);
    if (extent(step) == 1) return local;
    auto group = groupOf(step);
    if (!group.ok()) return group.status();
    if (from.isPartial() && to.isReplicate()) return (*group)->allReduce(local, from.reduceOp(), context_.tag);
    if (from.isPartial()) {
      return (*group)->reduceScatter(local, from.reduceOp(), to.dim(), lengths(local.size(to.dim()), step),
                                     context_.tag);
    }
    if (to.isReplicate())
      return (*group)->allGather(local, from.dim(), lengths(whole(step, from.dim()), step), context_.tag);
    return shardToShard(local, step, **group);
  }

  absl::StatusOr<at::Tensor> shardToShard(const at::Tensor& local, const ConversionStep& step,
                                          ThreadGroup& group) const {
    const int from = step.from.dim();
    const int to = step.to.dim();
    const std::vector<std::int64_t> send = lengths(local.size(to), step);
    const std::vector<std::int64_t> receive = lengths(whole(step, from), step);
    std::vector<at::Tensor> inputs;
    std::vector<std::vector<std::int64_t>> shapes;
    std::int64_t offset = 0;
    for (std::size_t r = 0; r < send.size(); ++r) {
      inputs.push_back(local.narrow(to, offset, send[r]));
      offset += send[r];
      shapes.push_back(local.sizes().vec());
      shapes.back()[static_cast<std::size_t>(from)] = receive[r];
      shapes.back()[static_cast<std::size_t>(to)] = send[static_cast<std::size_t>(index(step))];
    }
    auto parts = group.allToAll(inputs, shapes, context_.tag);
    if (!parts.ok()) return parts.status();
    return at::cat(*parts, from);
  }

  absl::StatusOr<at::Tensor> toPartial(const at::Tensor& local, const ConversionStep& step) const {
    const ReduceOp op = step.to.reduceOp();
    // The average of equal values is the value: every rank keeps it.
    if (op == ReduceOp::kAvg || extent(step) == 1) return local;
    const std::optional<c10::Scalar> nothing = neutral(local.scalar_type(), op);
    if (!nothing) {
      return absl::UnimplementedError(absl::StrCat("no conversion from ", step.from.toString(), " to ",
                                                   step.to.toString(), " for ", c10::toString(local.scalar_type()),
                                                   ", which has no neutral element"));
    }
    if (step.from.isReplicate()) {
      return index(step) == 0 ? local : at::full(local.sizes(), *nothing, local.options());
    }
    const int dim = step.from.dim();
    std::vector<std::int64_t> sizes = local.sizes().vec();
    sizes[static_cast<std::size_t>(dim)] = whole(step, dim);
    const ShardRange mine = shardRange(whole(step, dim), extent(step), index(step));
    at::Tensor result = at::full(sizes, *nothing, local.options());
    result.narrow(dim, mine.offset, mine.length).copy_(local);
    return result;
  }

  std::int64_t extent(const ConversionStep& step) const {
    return context_.mesh.shape()[static_cast<std::size_t>(step.meshDim)];
  }
  std::int64_t index(const ConversionStep& step) const {
    return context_.coordinate[static_cast<std::size_t>(step.meshDim)];
  }

  absl::StatusOr<ThreadGroup*> groupOf(const ConversionStep& step) const {
    return context_.group(context_.mesh.ranksAlong(step.meshDim, context_.coordinate));
  }

  /// The extent of tensor dimension `dim` over all ranks along the step's mesh dimension.
  std::int64_t whole(const ConversionStep& step, int dim) const {
    Placements outer = step.before;
    outer[static_cast<std::size_t>(step.meshDim)] = Placement::replicate();
    return localRange(shape_[static_cast<std::size_t>(dim)], dim, context_.mesh, outer, context_.coordinate).length;
  }

  std::vector<std::int64_t> lengths(std::int64_t size, const ConversionStep& step) const {
    std::vector<std::int64_t> result;
    for (std::int64_t i = 0; i < extent(step); ++i) result.push_back(shardRange(size, extent(step), i).length);
    return result;
  }

  const std::vector<std::int64_t>& shape_;
  const ConvertContext& context_;
};

}  // namespace

absl::StatusOr<at::Tensor> convert(const at::Tensor& local, const std::vector<std::int64_t>& shape,
                                   const Placements& from, const Placements& to, const ConvertContext& context) {
  auto steps = planConversion(shape, context.mesh, from, to);
  if (!steps.ok()) return steps.status();
  if (steps->empty()) return local;
  const Conversion conversion(shape, context);
  const std::vector<std::int64_t> expected = localShape(shape, context.mesh, from, context.coordinate);
  if (local.sizes() != c10::IntArrayRef(expected)) {
    const auto own = static_cast<std::size_t>(context.coordinate[0]);
    return conversion.run(
        absl::InvalidArgumentError(
            absl::StrCat("rank ", context.mesh.ranksAlong(0, context.coordinate)[own], "'s part of a tensor of shape [",
                         absl::StrJoin(shape, ", "), "] placed ", toString(from), " should have shape [",
                         absl::StrJoin(expected, ", "), "], and has [", absl::StrJoin(local.sizes(), ", "), "]")),
        *steps);
  }
  auto result = conversion.run(local, *steps);
  if (!result.ok()) return result;
  try {
    if (result->is_alias_of(local)) return local.clone(at::MemoryFormat::Contiguous);
    return result->contiguous();
  } catch (const std::exception& e) {
    return absl::ResourceExhaustedError(absl::StrCat("copying the result of a conversion: ", e.what()));
  }
}

absl::Status failConversion(const absl::Status& why, const std::vector<std::int64_t>& shape, const Placements& from,
                            const Placements& to, const ConvertContext& context) {
  auto steps = planConversion(shape, context.mesh, from, to);
  if (!steps.ok()) return steps.status();
  return Conversion(shape, context).run(why, *steps).status();
}

}  // namespace dtorch
