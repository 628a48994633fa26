#pragma once
#include <string>

#include "absl/status/statusor.h"
#include "core/device_mesh.h"
#include "core/placement.h"
#include "core/tensor_meta.h"
#include "core/value.h"
#include "dtorch/v1/types.pb.h"
#include "google/protobuf/repeated_field.h"

namespace dtorch {

// The one translation between wire and core types. Everything read is checked: INVALID_ARGUMENT says which field is
// bad.

void toWire(const Placement& placement, v1::Placement* out);
absl::StatusOr<Placement> fromWire(const v1::Placement& wire);
void toWire(const Placements& placements, google::protobuf::RepeatedPtrField<v1::Placement>* out);
absl::StatusOr<Placements> fromWire(const google::protobuf::RepeatedPtrField<v1::Placement>& wire);

void toWire(const DeviceMesh& mesh, v1::DeviceMesh* out);
absl::StatusOr<DeviceMesh> fromWire(const v1::DeviceMesh& wire);

void toWire(const TensorMeta& meta, v1::TensorMeta* out);
/// Checks sizes; strides are kept when there is one for each dimension, else contiguous ones are put in place.
absl::StatusOr<TensorMeta> fromWire(const v1::TensorMeta& wire);

void toWire(const Value& value, v1::Value* out);
/// Nesting deeper than 8 lists is refused.
absl::StatusOr<Value> fromWire(const v1::Value& wire);
void toWire(const Arguments& arguments, v1::Arguments* out);
absl::StatusOr<Arguments> fromWire(const v1::Arguments& wire);

/// Bytes of a message that cross the wire, and that a worker logs of a longer one.
inline constexpr std::size_t kMaxStatusText = 4096;
inline constexpr std::size_t kMaxLoggedText = 1 << 16;
/// Cuts messages at kMaxStatusText, at a character border, and replaces what is not UTF-8.
void toWire(const absl::Status& status, v1::Status* out);
absl::Status fromWire(const v1::Status& wire);

/// `text` as valid UTF-8 of at most `bytes` bytes: bad bytes become '?', a cut falls on a character border.
std::string printable(const std::string& text, std::size_t bytes);

}  // namespace dtorch
