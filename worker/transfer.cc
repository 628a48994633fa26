#include "worker/transfer.h"

#include <cstddef>
#include <exception>
#include <memory>
#include <utility>

#include "comm/store/shared_allocator.h"
#include "dispatch/dtype.h"
#include "dispatch/prepared_call.h"
#include "proto/codec.h"
#include "proto/limits.h"
#include "proto/segment_codec.h"

namespace dtorch {
namespace {
/// The segment that holds `tensor` alone, when it may be given to the session's client; else nullptr.
std::shared_ptr<Segment> ownSegment(const at::Tensor& tensor, SessionId session) {
  const bool nobodyElses = tensor.use_count() == 1 && tensor.storage().use_count() == 1;
  if (!nobodyElses || !isRowMajor(tensor) || tensor.storage_offset() != 0) return nullptr;
  return lendTensorMemory(tensor.const_data_ptr(), session);
}

absl::StatusOr<std::shared_ptr<Segment>> copyOf(const at::Tensor& tensor, std::size_t bytes, SessionId session,
                                                ValueSegments& values) {
  if (isRowMajor(tensor)) {
    return values.takeCopyOf(session, static_cast<const std::byte*>(tensor.const_data_ptr()), bytes);
  }
  absl::StatusOr<std::shared_ptr<Segment>> segment = values.take(session, bytes);
  if (segment.ok()) copyOut(tensor, (*segment)->data());
  return segment;
}
}  // namespace

absl::StatusOr<UploadTask> UploadTask::create(v1::Upload& wire, DeviceMesh mesh, std::vector<std::int64_t> coordinate) {
  UploadTask task(std::move(mesh), std::move(coordinate));
  absl::StatusOr<TensorMeta> meta = fromWire(wire.meta());
  if (!meta.ok()) return meta.status();
  absl::StatusOr<Placements> placements = fromWire(wire.placements());
  if (placements.ok()) {
    placements = normalize(*std::move(placements), task.mesh_.dims(), static_cast<int>(meta->shape.size()));
  }
  if (!placements.ok()) return placements.status();
  task.host_.meta = *std::move(meta);
  task.host_.placements = *std::move(placements);
  task.host_.parts = wire.parts();
  for (const v1::IntList& shape : wire.part_shapes()) {
    task.host_.partShapes.emplace_back(shape.values().begin(), shape.values().end());
  }
  task.inSegment_ = wire.has_segment();
  task.clientSegment_ = wire.client_segment();
  if (task.inSegment_) {
    task.segment_ = fromWire(wire.segment());
  } else {
    task.inlineBytes_ = std::move(*wire.mutable_inline_bytes());
  }
  return task;
}

absl::StatusOr<at::Tensor> UploadTask::run(SessionId session, ValueSegments& values) const {
  if (!inSegment_) {
    const auto* bytes = reinterpret_cast<const std::byte*>(inlineBytes_.data());
    return localPart(host_, {bytes, inlineBytes_.size()}, mesh_, coordinate_);
  }
  if (clientSegment_) {
    absl::StatusOr<std::shared_ptr<Segment>> segment = values.map(session, segment_);
    if (!segment.ok()) return segment.status();
    return localPart(host_, {(*segment)->data(), (*segment)->size()}, mesh_, coordinate_);
  }
  absl::StatusOr<Segment> segment = Segment::open(segment_);
  if (!segment.ok()) return segment.status();
  return localPart(host_, {segment->data(), segment->size()}, mesh_, coordinate_);
}

absl::Status fillValue(at::Tensor tensor, SessionId session, ValueSegments& values, v1::FetchedValue* out) {
  try {
    if (!tensor.defined()) return absl::InvalidArgumentError("the operator returned None, which has no value to fetch");
    const absl::StatusOr<DType> dtype = fromTorch(tensor.scalar_type());
    if (!dtype.ok()) return dtype.status();
    const absl::StatusOr<TensorMeta> meta = makeMeta(*dtype, tensor.sizes().vec());
    if (!meta.ok()) return meta.status();
    const auto bytes = static_cast<std::size_t>(meta->bytes());
    if (bytes <= kInlineBytes) {
      std::string* inlineBytes = out->mutable_inline_bytes();
      inlineBytes->resize(bytes);
      copyOut(tensor, reinterpret_cast<std::byte*>(inlineBytes->data()));
    } else {
      absl::StatusOr<std::shared_ptr<Segment>> segment = ownSegment(tensor, session);
      const bool lent = *segment != nullptr;
      if (!lent) segment = copyOf(tensor, bytes, session, values);
      if (!segment.ok()) return segment.status();
      toWire((*segment)->ref(), out->mutable_segment());
      std::shared_ptr<const void> holder;
      if (lent) holder = std::make_shared<const at::Tensor>(std::move(tensor));
      const auto ticket = values.keep(out->future(), session, *meta, *std::move(segment), std::move(holder));
      if (ticket) {
        out->mutable_ticket()->set_path(ticket->path);
        out->mutable_ticket()->set_id(ticket->id);
      }
    }
    toWire(*meta, out->mutable_meta());
    return absl::OkStatus();
  } catch (const std::exception& error) {
    return fromException(error);
  }
}

}  // namespace dtorch
