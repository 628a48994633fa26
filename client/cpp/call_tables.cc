#include "client/cpp/call_tables.h"

#include <bit>
#include <vector>

#include "absl/hash/hash.h"
#include "client/cpp/tensor.h"

namespace dtorch {
namespace {

std::size_t hashOf(const Value& value) {
  if (const auto* v = value.as<std::int64_t>()) return absl::HashOf(*v);
  if (const auto* v = value.as<double>()) return absl::HashOf(std::bit_cast<std::uint64_t>(*v));
  if (const auto* v = value.as<bool>()) return absl::HashOf(*v);
  if (const auto* v = value.as<DType>()) return absl::HashOf(*v);
  if (const auto* v = value.as<std::vector<std::int64_t>>()) return absl::HashOf(*v);
  if (value.isNone()) return 0;
  return absl::HashOf(value.toString());
}

std::size_t hashOf(const Argument& argument) {
  if (const Value* value = argument.value()) return absl::HashOf(value->variant().index(), hashOf(*value));
  if (const Tensor* tensor = argument.tensor()) return tensor->defined() ? 1 : 2;
  std::size_t hash = 3;
  for (const Tensor& tensor : *argument.tensors()) hash = absl::HashOf(hash, tensor.defined());
  return hash;
}

std::size_t hashOf(const CallView& call) {
  std::size_t hash = absl::HashOf(call.name, call.outputs, call.mesh, call.placements);
  for (const Argument& argument : call.positional) hash = absl::HashOf(hash, hashOf(argument));
  for (const auto& [name, argument] : call.named) hash = absl::HashOf(hash, name, hashOf(argument));
  return hash;
}

/// Walks a call's arguments, numbering its tensors in order.
class Positions {
 public:
  bool matches(const Value& known, const Argument& argument) {
    if (const Value* value = argument.value()) return known == *value;
    if (const Tensor* tensor = argument.tensor()) {
      if (!tensor->defined()) return known.isNone();
      const TensorArg* position = known.as<TensorArg>();
      return position != nullptr && position->index == next_++;
    }
    const TensorListArg* list = known.as<TensorListArg>();
    const absl::Span<const Tensor> tensors = *argument.tensors();
    if (list == nullptr || list->indices.size() != tensors.size()) return false;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const auto& index = list->indices[i];
      if (index.has_value() != tensors[i].defined() || (index && *index != next_++)) return false;
    }
    return true;
  }

  Value toValue(const Argument& argument) {
    if (const Value* value = argument.value()) return *value;
    if (const Tensor* tensor = argument.tensor()) return tensor->defined() ? Value(TensorArg{next_++}) : Value();
    TensorListArg list;
    for (const Tensor& tensor : *argument.tensors()) {
      list.indices.push_back(tensor.defined() ? std::optional<std::uint32_t>(next_++) : std::nullopt);
    }
    return list;
  }

 private:
  std::uint32_t next_ = 0;
};

}  // namespace

bool TemplateTable::Equal::operator()(const Key& a, const Key& b) const {
  return a.name == b.name && a.arguments == b.arguments && a.outputs == b.outputs && a.mesh == b.mesh &&
         a.placements == b.placements;
}

bool TemplateTable::Equal::operator()(const Key& key, const CallView& call) const {
  const Arguments& known = key.arguments;
  if (key.name != call.name || key.outputs != call.outputs || key.mesh != call.mesh ||
      key.placements != call.placements || known.positional.size() != call.positional.size() ||
      known.named.size() != call.named.size()) {
    return false;
  }
  Positions positions;
  for (std::size_t i = 0; i < call.positional.size(); ++i) {
    if (!positions.matches(known.positional[i], call.positional[i])) return false;
  }
  for (std::size_t i = 0; i < call.named.size(); ++i) {
    if (known.named[i].first != call.named[i].first || !positions.matches(known.named[i].second, call.named[i].second))
      return false;
  }
  return true;
}

TemplateTable::Entry TemplateTable::intern(CallView call) {
  call.hash = hashOf(call);
  if (const auto it = ids_.find(call); it != ids_.end()) return {it->second, nullptr};
  if (ids_.size() == kCapacity) ids_.clear();
  Positions positions;
  Key key{std::string(call.name), {}, call.outputs, call.mesh, call.placements, call.hash};
  for (const Argument& argument : call.positional) key.arguments.positional.push_back(positions.toValue(argument));
  for (const auto& [name, argument] : call.named) key.arguments.named.emplace_back(name, positions.toValue(argument));
  const auto id = static_cast<std::uint32_t>(ids_.size() + 1);
  const auto it = ids_.emplace(std::move(key), id).first;
  return {id, &it->first.arguments};
}

std::pair<std::uint32_t, bool> SiteTable::intern(Site site) {
  const auto [it, fresh] = ids_.try_emplace({site.file, site.line}, static_cast<std::uint32_t>(ids_.size() + 1));
  return {it->second, fresh};
}

}  // namespace dtorch
