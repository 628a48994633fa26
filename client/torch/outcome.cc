#include "client/torch/outcome.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>

#include <mutex>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "client/torch/remote_tensor.h"

namespace dtorch {
namespace {

using Kind = OperatorSchema::Kind;

/// What a call's outcome depends on, as bytes.
class Signature {
 public:
  explicit Signature(const OperatorSchema* schema) {
    add(reinterpret_cast<std::uintptr_t>(schema));
    add(c10::typeMetaToScalarType(c10::get_default_dtype()));
  }

  /// False: it has something that is not written down here.
  bool addArgument(const c10::IValue& value) {
    if (value.isNone()) return mark('0');
    if (value.isTensor()) return addTensor(value.toTensor());
    if (value.isInt()) return mark('i') && add(value.toInt());
    if (value.isDouble()) return mark('d') && add(value.toDouble());
    if (value.isBool()) return mark('b') && add(value.toBool());
    if (value.isDevice()) return mark('v');
    if (value.isComplexDouble()) return mark('c') && add(value.toComplexDouble());
    if (value.isString()) return mark('s') && addText(value.toStringRef());
    if (value.isGenerator()) return mark('g');
    if (value.isIntList()) {
      const auto list = value.toIntList();
      mark('I');
      add(list.size());
      for (const std::int64_t each : list) add(each);
      return true;
    }
    if (value.isList()) {
      const c10::ArrayRef<c10::IValue> list = value.toListRef();
      mark('L');
      add(list.size());
      for (const c10::IValue& each : list) {
        if (!addArgument(each)) return false;
      }
      return true;
    }
    return false;
  }

  const std::string& bytes() const { return bytes_; }

 private:
  template <typename T>
  bool add(const T& value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return true;
  }
  bool mark(char kind) {
    bytes_.push_back(kind);
    return true;
  }
  bool addText(const std::string& text) {
    add(text.size());
    bytes_.append(text);
    return true;
  }
  bool addTensor(const at::Tensor& tensor) {
    if (!tensor.defined()) return mark('u');
    // Values of host tensors may matter to a Meta kernel: only those of numbers are here, and do not.
    mark(tensor.unsafeGetTensorImpl()->is_wrapped_number() ? 'w' : isRemote(tensor) ? 't' : 'h');
    add(tensor.scalar_type());
    const auto sizes = tensor.sizes();
    add(static_cast<std::uint32_t>(sizes.size()));
    bytes_.append(reinterpret_cast<const char*>(sizes.data()), sizes.size() * sizeof(std::int64_t));
    const auto strides = tensor.strides();
    bytes_.append(reinterpret_cast<const char*>(strides.data()), strides.size() * sizeof(std::int64_t));
    return true;
  }

  std::string bytes_;
};

at::Tensor metaOf(const at::Tensor& tensor) {
  if (!isRemote(tensor)) return tensor;
  at::Tensor meta = at::empty_strided(tensor.sizes(), tensor.strides(),
                                      at::TensorOptions().dtype(tensor.scalar_type()).device(c10::kMeta));
  return meta;
}

c10::IValue metaOf(const c10::IValue& value) {
  if (value.isTensor()) return metaOf(value.toTensor());
  if (value.isDevice()) return c10::Device(c10::kMeta);
  if (value.isGenerator()) return c10::IValue();
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& each : value.toTensorVector()) list.push_back(metaOf(each));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& each : value.toOptionalTensorList()) {
      list.push_back(each ? std::optional<at::Tensor>(metaOf(*each)) : std::nullopt);
    }
    return list;
  }
  return value;
}

Outcome::Result resultOf(const at::Tensor& tensor) {
  if (!tensor.defined()) return {.defined = false, .sizes = {}, .strides = {}, .offset = 0};
  TORCH_CHECK(tensor.layout() == c10::kStrided, "a result that is not a strided tensor is not for the device dtorch");
  return {.dtype = tensor.scalar_type(),
          .sizes = tensor.sizes().vec(),
          .strides = tensor.strides().vec(),
          .offset = tensor.storage_offset()};
}

std::shared_ptr<const Outcome> infer(const c10::OperatorHandle& op, const OperatorSchema& schema,
                                     c10::ArrayRef<c10::IValue> arguments) {
  if (schema.dependsOnValues) return nullptr;
  torch::jit::Stack stack;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const bool isDevice = schema.arguments[i].kind == Kind::kDevice;
    stack.push_back(isDevice ? c10::IValue(c10::Device(c10::kMeta)) : metaOf(arguments[i]));
  }
  const at::AutoDispatchBelowADInplaceOrView belowAutograd;
  try {
    op.callBoxed(stack);
  } catch (const c10::NotImplementedError&) {
    return nullptr;
  } catch (const c10::Error&) {
    throw;
  } catch (const std::exception&) {  // Python's: that there is no such kernel, or a refusal, which the daemon says, too
    return nullptr;
  }
  auto outcome = std::make_shared<Outcome>();
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) {
      outcome->results.push_back(resultOf(value.toTensor()));
    } else if (value.isTensorList()) {
      const auto list = value.toTensorVector();
      outcome->listSizes.push_back(list.size());
      for (const at::Tensor& each : list) outcome->results.push_back(resultOf(each));
    } else {
      return nullptr;  // a number that depends on values
    }
  }
  return outcome;
}

/// The outcomes that are certain, by signature.
class OutcomeTable {
 public:
  std::shared_ptr<const Outcome> find(const std::string& signature) {
    const std::lock_guard lock(mutex_);
    const auto it = known_.find(signature);
    return it == known_.end() ? nullptr : it->second;
  }
  void add(const std::string& signature, std::shared_ptr<const Outcome> outcome) {
    const std::lock_guard lock(mutex_);
    if (known_.size() >= kRemembered) known_.clear();
    known_[signature] = std::move(outcome);
  }

 private:
  // Programs whose shapes change all the time begin anew now and then.
  static constexpr std::size_t kRemembered = 1u << 15;
  std::mutex mutex_;
  absl::flat_hash_map<std::string, std::shared_ptr<const Outcome>> known_;
};

OutcomeTable& table() {
  static auto* only = new OutcomeTable;
  return *only;
}

}  // namespace

Expectation expect(const c10::OperatorHandle& op, const OperatorSchema& schema, c10::ArrayRef<c10::IValue> arguments) {
  Signature signature(&schema);
  bool isWhole = !schema.dependsOnValues;
  for (std::size_t i = 0; isWhole && i < arguments.size(); ++i) isWhole = signature.addArgument(arguments[i]);
  if (!isWhole) return {infer(op, schema, arguments), false, {}};
  if (std::shared_ptr<const Outcome> known = table().find(signature.bytes())) return {known, true, {}};
  std::shared_ptr<const Outcome> outcome = infer(op, schema, arguments);
  const bool isCertain = schema.isPlain && outcome != nullptr;
  if (isCertain) table().add(signature.bytes(), outcome);
  return {outcome, isCertain, signature.bytes()};
}

void remember(const std::string& signature, std::shared_ptr<const Outcome> outcome) {
  if (!signature.empty()) table().add(signature, std::move(outcome));
}

}  // namespace dtorch
