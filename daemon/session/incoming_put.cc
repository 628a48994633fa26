#include "daemon/session/incoming_put.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/conversion.h"
#include "core/shard.h"
#include "proto/codec.h"
#include "proto/limits.h"
#include "proto/segment_codec.h"

namespace dtorch {
namespace {

std::string localShapeText(const std::vector<std::int64_t>& shape) {
  return TensorMeta{DType::kUnspecified, shape, {}}.toString().substr(name(DType::kUnspecified).size());
}

}  // namespace

absl::StatusOr<TensorLayout> checkPut(const v1::Put& put, const Definitions& definitions) {
  absl::StatusOr<const PlacedMesh*> placedOn = definitions.mesh(put.mesh());
  if (!placedOn.ok()) return placedOn.status();
  const DeviceMesh& mesh = (*placedOn)->mesh;
  absl::StatusOr<TensorMeta> meta = fromWire(put.meta());
  if (!meta.ok()) return meta.status();
  meta->strides = contiguousStrides(meta->shape);
  absl::StatusOr<Placements> placements = fromWire(put.placements());
  if (!placements.ok()) return placements.status();
  placements = normalize(*std::move(placements), mesh.dims(), static_cast<int>(meta->shape.size()));
  if (!placements.ok()) return placements.status();
  if (absl::Status reducible = checkReducible(*placements, meta->dtype); !reducible.ok()) return reducible;
  std::uint64_t bytes = static_cast<std::uint64_t>(meta->bytes());
  if (put.parts()) {
    if (put.part_shapes_size() != mesh.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(put.part_shapes_size(), " parts for the ", mesh.size(), " ranks of the mesh"));
    }
    bytes = 0;
    for (int i = 0; i < put.part_shapes_size(); ++i) {
      const std::vector<std::int64_t> given(put.part_shapes(i).values().begin(), put.part_shapes(i).values().end());
      absl::StatusOr<TensorMeta> part = makeMeta(meta->dtype, given);
      if (!part.ok()) return part.status();
      const Rank rank = mesh.ranks()[static_cast<std::size_t>(i)];
      const std::vector<std::int64_t> expected = localShape(meta->shape, mesh, *placements, *mesh.coordinate(rank));
      if (given != expected) {
        return absl::InvalidArgumentError(absl::StrCat(
            "rank ", rank, "'s part of ", meta->toString(), " ", toString(*placements), " must be of shape ",
            localShapeText(expected), ", not ", localShapeText(given), ": parts are split as torch.chunk does"));
      }
      if (__builtin_add_overflow(bytes, static_cast<std::uint64_t>(part->bytes()), &bytes)) {
        return absl::InvalidArgumentError("the parts hold more than 2^64 - 1 bytes");
      }
    }
  }
  if (put.total_bytes() != bytes || put.inline_bytes().size() > bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(meta->toString(), " takes ", bytes, " bytes, the put announces ", put.total_bytes()));
  }
  return TensorLayout{*std::move(meta), *placedOn, *std::move(placements)};
}

absl::Status IncomingPut::open(const v1::Put& put, const TensorLayout* layout) {
  layout_ = layout;
  toWire(layout->mesh->mesh, upload_.mutable_mesh());
  toWire(layout->meta, upload_.mutable_meta());
  toWire(layout->placements, upload_.mutable_placements());
  upload_.set_parts(put.parts());
  *upload_.mutable_part_shapes() = put.part_shapes();
  if (put.has_segment()) {
    if (put.segment().bytes() < totalBytes_) {
      return absl::InvalidArgumentError(
          absl::StrCat("a segment of ", put.segment().bytes(), " bytes was given for a tensor of ", totalBytes_));
    }
    *upload_.mutable_segment() = put.segment();
    upload_.set_client_segment(true);
    return absl::OkStatus();
  }
  if (totalBytes_ <= kInlineBytes) return absl::OkStatus();
  absl::StatusOr<Segment> segment = Segment::reserve("dtorch-put", totalBytes_);
  if (!segment.ok()) return segment.status();
  segment_ = std::make_shared<Segment>(*std::move(segment));
  memory_ = segment_;
  toWire(segment_->ref(), upload_.mutable_segment());
  return absl::OkStatus();
}

absl::Status IncomingPut::checkNext(const v1::PutChunk& chunk) const {
  if (chunk.offset() == received_ && chunk.data().size() <= totalBytes_ - received_) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("bytes ", chunk.offset(), " to ", chunk.offset() + chunk.data().size(),
                                                 " of tensor ", tensor_, "; expected from ", received_, ", ",
                                                 totalBytes_, " in all"));
}

absl::Status IncomingPut::receive(const std::string& data) {
  const std::uint64_t offset = std::exchange(received_, received_ + data.size());
  if (failure != nullptr || data.empty()) return absl::OkStatus();
  if (segment_ == nullptr) {
    upload_.mutable_inline_bytes()->append(data);
    return absl::OkStatus();
  }
  if (absl::Status status = segment_->commit(offset, data.size()); !status.ok()) {
    segment_.reset();
    memory_.reset();
    return status;
  }
  std::memcpy(segment_->data() + offset, data.data(), data.size());
  return absl::OkStatus();
}

v1::Upload IncomingPut::takeUpload(OperandId operand) {
  upload_.set_operand(operand);
  return std::move(upload_);
}

}  // namespace dtorch
