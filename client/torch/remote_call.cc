#include "client/torch/remote_call.h"

#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/torch/call_site.h"
#include "client/torch/current_session.h"
#include "client/torch/generator.h"
#include "client/torch/gradient.h"
#include "client/torch/host_values.h"
#include "client/torch/operator_schema.h"
#include "client/torch/outcome.h"
#include "client/torch/remote_tensor.h"
#include "dispatch/dtype.h"

namespace dtorch {
namespace {

using Kind = OperatorSchema::Kind;

MemoryFormat formatOf(c10::MemoryFormat format) {
  switch (format) {
    case c10::MemoryFormat::Preserve:
      return MemoryFormat::kPreserve;
    case c10::MemoryFormat::ChannelsLast:
      return MemoryFormat::kChannelsLast;
    case c10::MemoryFormat::ChannelsLast3d:
      return MemoryFormat::kChannelsLast3d;
    default:
      return MemoryFormat::kContiguous;
  }
}

/// The arguments of one call as the client library takes them.
class CallBuilder {
 public:
  explicit CallBuilder(const OperatorSchema& schema) : schema_(schema) { positional_.reserve(schema.arguments.size()); }

  void add(const OperatorSchema::Argument& argument, const c10::IValue& value) {
    // What is left out is not sent: the daemon knows the schema's defaults.
    const bool isLeftOut = argument.hasDefault && isDefault(argument, value);
    if (argument.keywordOnly) {
      if (!isLeftOut) options_.named.emplace_back(argument.name, convert(argument, value));
      return;
    }
    positional_.push_back(convert(argument, value));
    if (!isLeftOut) used_ = positional_.size();
  }

  std::vector<Tensor> send(Session& session, std::uint32_t outputs) {
    if (!anyTensor_) {
      Destination destination = currentDestination();
      options_.mesh = std::move(destination.mesh);
      options_.placements = std::move(destination.placements);
    }
    options_.implicit = redistributesImplicitly();
    options_.timeout = currentTimeLimit();
    const Site site = callSite();
    std::optional<DrawsFrom> draws;
    if (draws_) draws.emplace(generator_, site);
    return session.callMany(schema_.name, absl::MakeConstSpan(positional_).first(used_), outputs, options_, site);
  }

 private:
  static bool isDefault(const OperatorSchema::Argument& argument, const c10::IValue& value) {
    const c10::IValue& usual = argument.ifLeftOut;
    if (usual.isNone()) return value.isNone();
    if (usual.isInt()) return value.isInt() && value.toInt() == usual.toInt();
    if (usual.isBool()) return value.isBool() && value.toBool() == usual.toBool();
    if (usual.isDouble()) return value.isDouble() && value.toDouble() == usual.toDouble();
    return false;
  }

  Tensor remoteOf(const at::Tensor& tensor) {
    if (isRemote(tensor)) {
      RemoteTensorImpl& impl = remoteImpl(tensor);
      if (impl.requires_grad()) placeGradientOf(impl);
      return impl.remote();
    }
    TORCH_CHECK(tensor.dim() == 0 && tensor.device().is_cpu(), schema_.name, ": a tensor of shape ", tensor.sizes(),
                " is on the device ", tensor.device(), ", others are on dtorch: move it there first");
    return putHost(tensor, {});
  }

  Argument convert(const OperatorSchema::Argument& argument, const c10::IValue& value) {
    switch (argument.kind) {
      case Kind::kTensor:
        return convertTensor(value);
      case Kind::kTensorList: {
        if (value.isNone()) return std::nullopt;
        std::vector<Tensor>& list = lists_.emplace_back();
        for (const c10::IValue& each : value.toListRef()) {
          const bool isNone = each.isNone() || !each.toTensor().defined();
          list.push_back(isNone ? Tensor() : remoteOf(each.toTensor()));
        }
        anyTensor_ = anyTensor_ || !list.empty();
        return list;
      }
      case Kind::kGenerator:
        draws_ = true;
        if (value.isNone()) return std::nullopt;
        TORCH_CHECK(value.toGenerator().device().is_privateuseone(), schema_.name, ": the generator is on the device ",
                    value.toGenerator().device(), ", the tensors are on dtorch");
        generator_ = value.toGenerator().get<RemoteGenerator>();
        return std::nullopt;
      default:
        return convertValue(argument.kind, value);
    }
  }

  Argument convertTensor(const c10::IValue& value) {
    if (value.isNone() || !value.toTensor().defined()) return std::nullopt;
    const at::Tensor& tensor = value.toTensor();
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number() && tensor.device().is_cpu()) {
      return number(tensor.item());  // takes part in the promotion of dtypes as a number
    }
    anyTensor_ = true;
    return tensors_.emplace_back(remoteOf(tensor));
  }

  static Value number(const c10::Scalar& scalar) {
    if (scalar.isBoolean()) return scalar.toBool();
    if (scalar.isIntegral(false)) return scalar.toLong();
    if (scalar.isComplex()) return std::complex<double>(scalar.toComplexDouble());
    return scalar.toDouble();
  }

  Value convertValue(Kind kind, const c10::IValue& value) const {
    if (value.isNone()) return Value();
    switch (kind) {
      case Kind::kNumber:
        return number(value.toScalar());
      case Kind::kString:
        return value.toStringRef();
      case Kind::kDType: {
        const absl::StatusOr<DType> dtype = fromTorch(value.toScalarType());
        if (!dtype.ok()) raise(dtype.status());
        return *dtype;
      }
      case Kind::kLayout:
        TORCH_CHECK(value.toLayout() == c10::kStrided, schema_.name, ": the layout ", value.toLayout(),
                    " is not for the device dtorch, strided is");
        return Layout::kStrided;
      case Kind::kMemoryFormat:
        return formatOf(value.toMemoryFormat());
      case Kind::kDevice:
        return DeviceArg{"cpu"};  // the worker puts its own in place
      case Kind::kIntList:
        return value.isInt() ? Value(value.toInt()) : Value(value.toIntVector());
      case Kind::kFloatList:
        return value.toDoubleVector();
      case Kind::kBoolList: {
        const auto list = value.toBoolList();
        return std::vector<bool>(list.begin(), list.end());
      }
      case Kind::kNumberList: {
        std::vector<Value> list;
        for (const c10::IValue& each : value.toListRef()) list.push_back(number(each.toScalar()));
        return list;
      }
      default:
        TORCH_CHECK_NOT_IMPLEMENTED(false, schema_.name, ": an argument of the type ", value.type()->str(),
                                    " does not cross to the device dtorch");
    }
  }

  const OperatorSchema& schema_;
  std::vector<Argument> positional_;
  std::size_t used_ = 0;
  CallOptions options_;
  std::deque<Tensor> tensors_;
  std::deque<std::vector<Tensor>> lists_;
  bool draws_ = false;  // random numbers
  RemoteGenerator* generator_ = nullptr;
  bool anyTensor_ = false;
};

// What the daemon says of the tensors that a call has made. `expected`: which of them there are; null: all.
std::shared_ptr<const Outcome> learn(const std::vector<Tensor>& made, const Outcome* expected) {
  auto outcome = expected == nullptr ? std::make_shared<Outcome>() : std::make_shared<Outcome>(*expected);
  outcome->results.resize(made.size());
  std::vector<Future<TensorInfo>> infos;
  infos.reserve(made.size());
  for (const Tensor& each : made) infos.push_back(each.describe());
  for (std::size_t i = 0; i < made.size(); ++i) {
    Outcome::Result& result = outcome->results[i];
    if (!result.defined) continue;
    const absl::StatusOr<TensorInfo> info = infos[i].get();
    if (!info.ok()) raise(info.status());
    result.dtype = toTorch(info->meta.dtype);
    result.sizes = info->meta.shape;
    result.strides = info->meta.strides;
  }
  return outcome;
}

// Of as_strided: from where the memory begins, instead of the tensor.
bool givesOffset(const OperatorSchema& schema, c10::ArrayRef<c10::IValue> arguments) {
  return schema.name == "aten::as_strided" && !arguments[3].isNone();
}

c10::IValue numberOf(const Tensor& made) {
  const absl::StatusOr<HostTensor> value = made.get().get();
  if (!value.ok()) raise(value.status());
  return toHost(*value).item();
}

}  // namespace

void callRemotely(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::shared_ptr<Session> session = currentSession();
  const OperatorSchema& schema = schemaOf(op);
  const std::size_t count = schema.arguments.size();
  const c10::ArrayRef<c10::IValue> arguments(&*stack->end() - count, count);
  const Expectation expectation = expect(op, schema, arguments);
  std::shared_ptr<const Outcome> outcome = expectation.outcome;

  CallBuilder call(schema);
  for (std::size_t i = 0; i < count; ++i) call.add(schema.arguments[i], arguments[i]);
  TORCH_CHECK_NOT_IMPLEMENTED(outcome != nullptr || std::none_of(schema.returns.begin(), schema.returns.end(),
                                                                 [](const auto& each) { return each.isList; }),
                              schema.name, ": how many tensors it returns depends on values");
  const std::size_t outputs = outcome != nullptr ? outcome->results.size() : schema.returns.size();
  const std::vector<Tensor> made = call.send(*session, static_cast<std::uint32_t>(outputs));
  if (!expectation.isCertain && !made.empty()) {
    outcome = learn(made, outcome.get());
    remember(expectation.signature, outcome);
  }

  std::vector<c10::IValue> results;
  std::size_t next = 0;
  std::size_t list = 0;
  const auto take = [&](const OperatorSchema::Return& each) -> at::Tensor {
    const Outcome::Result& result = outcome->results[next];
    const Tensor& remote = made[next++];
    if (!result.defined) return at::Tensor();
    std::int64_t offset = each.views < 0 ? 0 : result.offset;
    if (each.views >= 0 && !givesOffset(schema, arguments)) {
      offset += arguments[static_cast<std::size_t>(each.views)].toTensor().storage_offset();
    }
    return makeRemote(remote, result.dtype, result.sizes, result.strides, offset);
  };
  for (const OperatorSchema::Return& each : schema.returns) {
    if (each.writes >= 0 && !each.isList) {
      const c10::IValue& written = arguments[static_cast<std::size_t>(each.writes)];
      const Outcome::Result& result = outcome->results[next];
      RemoteTensorImpl& impl = remoteImpl(written.toTensor());
      impl.replace(made[next++], result.sizes, result.strides, impl.storage_offset());
      results.push_back(written);
    } else if (each.isList) {
      c10::List<at::Tensor> tensors;
      for (std::size_t i = 0; i < outcome->listSizes[list]; ++i) tensors.push_back(take(each));
      ++list;
      results.emplace_back(std::move(tensors));
    } else if (each.isTensor) {
      results.emplace_back(take(each));
    } else {
      results.push_back(numberOf(made[next++]));
    }
  }
  stack->erase(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  stack->insert(stack->end(), results.begin(), results.end());
}

}  // namespace dtorch
