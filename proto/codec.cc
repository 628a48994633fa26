#include "proto/codec.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dtorch {
namespace {

constexpr int kMaxNesting = 8;

absl::StatusOr<DType> dtypeFromWire(int wire) {
  if (wire <= 0 || wire >= kDTypeCount)
    return absl::InvalidArgumentError(absl::StrCat("dtype number ", wire, " is unknown"));
  return static_cast<DType>(wire);
}

v1::DType dtypeToWire(DType dtype) { return static_cast<v1::DType>(dtype); }

struct ValueWriter {
  v1::Value* out;
  void operator()(std::monostate) const { out->set_none(true); }
  void operator()(bool v) const { out->set_boolean(v); }
  void operator()(std::int64_t v) const { out->set_integer(v); }
  void operator()(double v) const { out->set_real(v); }
  void operator()(const std::complex<double>& v) const {
    out->mutable_complex()->set_real(v.real());
    out->mutable_complex()->set_imaginary(v.imag());
  }
  void operator()(const std::string& v) const { out->set_text(v); }
  void operator()(DType v) const { out->set_dtype(dtypeToWire(v)); }
  void operator()(const DeviceArg& v) const { out->set_device(v.text); }
  void operator()(Layout v) const { out->set_layout(static_cast<v1::Layout>(v)); }
  void operator()(MemoryFormat v) const { out->set_memory_format(static_cast<v1::MemoryFormat>(v)); }
  void operator()(TensorArg v) const { out->set_tensor(v.index); }
  void operator()(const TensorListArg& v) const {
    v1::TensorList* list = out->mutable_tensors();
    for (const auto& index : v.indices) list->add_indices(index ? *index + 1 : 0);
  }
  void operator()(const std::vector<std::int64_t>& v) const {
    out->mutable_integers()->mutable_values()->Add(v.begin(), v.end());
  }
  void operator()(const std::vector<double>& v) const {
    out->mutable_reals()->mutable_values()->Add(v.begin(), v.end());
  }
  void operator()(const std::vector<bool>& v) const {
    v1::BoolList* list = out->mutable_booleans();
    for (const bool b : v) list->add_values(b);
  }
  void operator()(const std::vector<Value>& v) const {
    v1::ValueList* list = out->mutable_values();
    for (const Value& element : v) toWire(element, list->add_values());
  }
  void operator()(const LocalSizes& v) const {
    v1::LocalSizes* sizes = out->mutable_local_sizes();
    sizes->mutable_shape()->Add(v.shape.begin(), v.shape.end());
    toWire(v.placements, sizes->mutable_placements());
  }
  void operator()(const LocalRange& v) const {
    v1::LocalRange* range = out->mutable_local_range();
    range->mutable_shape()->Add(v.shape.begin(), v.shape.end());
    toWire(v.placements, range->mutable_placements());
    range->set_dim(v.dim);
    range->set_length(v.part == LocalRange::Part::kLength);
  }
};

absl::StatusOr<Value> valueFromWire(const v1::Value& wire, int nesting) {
  switch (wire.kind_case()) {
    case v1::Value::kNone:
      return Value();
    case v1::Value::kBoolean:
      return Value(wire.boolean());
    case v1::Value::kInteger:
      return Value(static_cast<std::int64_t>(wire.integer()));
    case v1::Value::kReal:
      return Value(wire.real());
    case v1::Value::kComplex:
      return Value(std::complex<double>(wire.complex().real(), wire.complex().imaginary()));
    case v1::Value::kText:
      return Value(wire.text());
    case v1::Value::kDtype: {
      absl::StatusOr<DType> dtype = dtypeFromWire(wire.dtype());
      if (!dtype.ok()) return dtype.status();
      return Value(*dtype);
    }
    case v1::Value::kDevice:
      return Value(DeviceArg{wire.device()});
    case v1::Value::kLayout:
      if (wire.layout() != v1::LAYOUT_STRIDED) {
        return absl::InvalidArgumentError(absl::StrCat("layout number ", wire.layout(), " is unknown"));
      }
      return Value(Layout::kStrided);
    case v1::Value::kMemoryFormat:
      if (wire.memory_format() <= 0 || wire.memory_format() > v1::MEMORY_FORMAT_CHANNELS_LAST_3D) {
        return absl::InvalidArgumentError(absl::StrCat("memory format number ", wire.memory_format(), " is unknown"));
      }
      return Value(static_cast<MemoryFormat>(wire.memory_format()));
    case v1::Value::kTensor:
      return Value(TensorArg{wire.tensor()});
    case v1::Value::kTensors: {
      TensorListArg list;
      for (const std::uint32_t index : wire.tensors().indices()) {
        list.indices.push_back(index == 0 ? std::nullopt : std::optional<std::uint32_t>(index - 1));
      }
      return Value(std::move(list));
    }
    case v1::Value::kIntegers:
      return Value(std::vector<std::int64_t>(wire.integers().values().begin(), wire.integers().values().end()));
    case v1::Value::kReals:
      return Value(std::vector<double>(wire.reals().values().begin(), wire.reals().values().end()));
    case v1::Value::kBooleans:
      return Value(std::vector<bool>(wire.booleans().values().begin(), wire.booleans().values().end()));
    case v1::Value::kValues: {
      if (nesting >= kMaxNesting) {
        return absl::InvalidArgumentError(absl::StrCat("an argument nests more than ", kMaxNesting, " lists"));
      }
      std::vector<Value> values;
      for (const v1::Value& element : wire.values().values()) {
        absl::StatusOr<Value> value = valueFromWire(element, nesting + 1);
        if (!value.ok()) return value.status();
        values.push_back(*std::move(value));
      }
      return Value(std::move(values));
    }
    case v1::Value::kLocalSizes: {
      absl::StatusOr<Placements> placements = fromWire(wire.local_sizes().placements());
      if (!placements.ok()) return placements.status();
      return Value(
          LocalSizes{{wire.local_sizes().shape().begin(), wire.local_sizes().shape().end()}, *std::move(placements)});
    }
    case v1::Value::kLocalRange: {
      const v1::LocalRange& range = wire.local_range();
      absl::StatusOr<Placements> placements = fromWire(range.placements());
      if (!placements.ok()) return placements.status();
      return Value(LocalRange{{range.shape().begin(), range.shape().end()},
                              *std::move(placements),
                              range.dim(),
                              range.length() ? LocalRange::Part::kLength : LocalRange::Part::kOffset});
    }
    case v1::Value::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("an argument has no value set, or one of a newer protocol");
}

/// Bytes of the UTF-8 character at `text[at]`; 0 if none is there: a stray or missing byte, an overlong form, a
/// surrogate.
std::size_t characterLength(const std::string& text, std::size_t at) {
  constexpr std::array<std::uint32_t, 5> kSmallest{0, 0, 0x80, 0x800, 0x10000};
  const auto lead = static_cast<unsigned char>(text[at]);
  if (lead < 0x80) return 1;
  const std::size_t length = (lead >> 5) == 0x6 ? 2 : (lead >> 4) == 0xE ? 3 : (lead >> 3) == 0x1E ? 4 : 0;
  if (length == 0 || at + length > text.size()) return 0;
  std::uint32_t code = lead & (0x7Fu >> length);
  for (std::size_t k = 1; k < length; ++k) {
    const auto byte = static_cast<unsigned char>(text[at + k]);
    if ((byte >> 6) != 0x2) return 0;
    code = code << 6 | (byte & 0x3Fu);
  }
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  return code < kSmallest[length] || code > 0x10FFFF || surrogate ? 0 : length;
}

}  // namespace

void toWire(const Placement& placement, v1::Placement* out) {
  switch (placement.kind()) {
    case Placement::Kind::kReplicate:
      out->set_replicate(true);
      break;
    case Placement::Kind::kShard:
      out->set_shard(placement.dim());
      break;
    case Placement::Kind::kPartial:
      out->set_partial(static_cast<v1::ReduceOp>(placement.reduceOp()));
      break;
  }
}

absl::StatusOr<Placement> fromWire(const v1::Placement& wire) {
  switch (wire.kind_case()) {
    case v1::Placement::kReplicate:
      return Placement::replicate();
    case v1::Placement::kShard:
      return Placement::shard(wire.shard());
    case v1::Placement::kPartial:
      if (wire.partial() < v1::REDUCE_OP_SUM || wire.partial() > v1::REDUCE_OP_MAX) {
        return absl::InvalidArgumentError(absl::StrCat("reduce operation number ", wire.partial(), " is unknown"));
      }
      return Placement::partial(static_cast<ReduceOp>(wire.partial()));
    case v1::Placement::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("a placement is neither Replicate, Shard nor Partial");
}

void toWire(const Placements& placements, google::protobuf::RepeatedPtrField<v1::Placement>* out) {
  for (const Placement& placement : placements) toWire(placement, out->Add());
}

absl::StatusOr<Placements> fromWire(const google::protobuf::RepeatedPtrField<v1::Placement>& wire) {
  Placements placements;
  placements.reserve(static_cast<std::size_t>(wire.size()));
  for (const v1::Placement& element : wire) {
    absl::StatusOr<Placement> placement = fromWire(element);
    if (!placement.ok()) return placement.status();
    placements.push_back(*placement);
  }
  return placements;
}

void toWire(const DeviceMesh& mesh, v1::DeviceMesh* out) {
  out->set_device_type(static_cast<v1::DeviceType>(mesh.deviceType()));
  out->mutable_shape()->Add(mesh.shape().begin(), mesh.shape().end());
  out->mutable_ranks()->Add(mesh.ranks().begin(), mesh.ranks().end());
  for (const std::string& text : mesh.names()) out->add_names(text);
}

absl::StatusOr<DeviceMesh> fromWire(const v1::DeviceMesh& wire) {
  if (wire.device_type() != v1::DEVICE_TYPE_CPU && wire.device_type() != v1::DEVICE_TYPE_CUDA) {
    return absl::InvalidArgumentError(absl::StrCat("device type number ", wire.device_type(), " is unknown"));
  }
  return DeviceMesh::create(static_cast<DeviceType>(wire.device_type()), {wire.shape().begin(), wire.shape().end()},
                            {wire.ranks().begin(), wire.ranks().end()}, {wire.names().begin(), wire.names().end()});
}

void toWire(const TensorMeta& meta, v1::TensorMeta* out) {
  out->set_dtype(dtypeToWire(meta.dtype));
  out->mutable_shape()->Add(meta.shape.begin(), meta.shape.end());
  out->mutable_strides()->Add(meta.strides.begin(), meta.strides.end());
}

absl::StatusOr<TensorMeta> fromWire(const v1::TensorMeta& wire) {
  absl::StatusOr<DType> dtype = dtypeFromWire(wire.dtype());
  if (!dtype.ok()) return dtype.status();
  absl::StatusOr<TensorMeta> meta = makeMeta(*dtype, {wire.shape().begin(), wire.shape().end()});
  if (meta.ok() && wire.strides_size() == wire.shape_size()) {
    meta->strides.assign(wire.strides().begin(), wire.strides().end());
  }
  return meta;
}

void toWire(const Value& value, v1::Value* out) { std::visit(ValueWriter{out}, value.variant()); }

absl::StatusOr<Value> fromWire(const v1::Value& wire) { return valueFromWire(wire, 0); }

void toWire(const Arguments& arguments, v1::Arguments* out) {
  for (const Value& value : arguments.positional) toWire(value, out->add_positional());
  for (const auto& [argument, value] : arguments.named) {
    v1::NamedValue* named = out->add_named();
    named->set_name(argument);
    toWire(value, named->mutable_value());
  }
}

absl::StatusOr<Arguments> fromWire(const v1::Arguments& wire) {
  Arguments arguments;
  for (const v1::Value& element : wire.positional()) {
    absl::StatusOr<Value> value = fromWire(element);
    if (!value.ok()) return value.status();
    arguments.positional.push_back(*std::move(value));
  }
  for (const v1::NamedValue& element : wire.named()) {
    absl::StatusOr<Value> value = fromWire(element.value());
    if (!value.ok()) return value.status();
    arguments.named.emplace_back(element.name(), *std::move(value));
  }
  return arguments;
}

void toWire(const absl::Status& status, v1::Status* out) {
  out->set_code(static_cast<int>(status.code()));
  out->set_message(printable(std::string(status.message()), kMaxStatusText));
}

absl::Status fromWire(const v1::Status& wire) {
  if (wire.code() == 0) return absl::OkStatus();
  const bool known = wire.code() > 0 && wire.code() <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  return absl::Status(known ? static_cast<absl::StatusCode>(wire.code()) : absl::StatusCode::kUnknown, wire.message());
}

std::string printable(const std::string& text, std::size_t bytes) {
  std::string out;
  out.reserve(std::min(text.size(), bytes));
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t valid = characterLength(text, i);
    const std::size_t length = valid == 0 ? 1 : valid;
    if (out.size() + length > bytes) break;
    if (valid != 0) {
      out.append(text, i, length);
    } else {
      out.push_back('?');
    }
    i += length;
  }
  return out;
}

}  // namespace dtorch
