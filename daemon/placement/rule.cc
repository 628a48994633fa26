#include "daemon/placement/rule.h"

#include <algorithm>
#include <numeric>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace dtorch {
namespace {

using Table = absl::flat_hash_map<std::string, const Rule*>;

Table makeTable() {
  Table table;
  for (const absl::Span<const Rule> rules :
       {pointwiseRules(), matmulRules(), reductionRules(), alongDimRules(), viewRules()}) {
    for (const Rule& rule : rules) table.emplace(std::string(rule.op), &rule);
  }
  return table;
}

// "aten::add_.Tensor" -> "aten::add.Tensor"; empty when the name is not of an in-place form.
std::string functionalName(const std::string& op) {
  const std::size_t dot = op.find('.');
  const std::size_t end = dot == std::string::npos ? op.size() : dot;
  if (end < 2 || op[end - 1] != '_' || op[end - 2] == '_') return {};
  return op.substr(0, end - 1) + op.substr(end);
}

// A 0-dim tensor counts as having one dimension, as in torch.
absl::StatusOr<int> wrapDimension(const std::string& name, std::int64_t given, std::size_t dims) {
  const std::int64_t count = std::max<std::int64_t>(static_cast<std::int64_t>(dims), 1);
  const std::int64_t dim = given < 0 ? given + count : given;
  if (dim >= 0 && dim < count) return static_cast<int>(dim);
  return absl::InvalidArgumentError(
      absl::StrCat("argument '", name, "' names dimension ", given, "; the tensor has ", dims));
}

}  // namespace

const Value* RuleCall::argument(const std::string& name) const {
  const int index = position(name);
  return index < 0 ? nullptr : &arguments[static_cast<std::size_t>(index)];
}

int RuleCall::position(const std::string& name) const {
  const auto index = schema.argumentIndexWithName(name);
  return index ? *index : -1;
}

std::vector<std::vector<int>> argumentSets(absl::string_view text) {
  std::vector<std::vector<int>> sets;
  for (const absl::string_view set : absl::StrSplit(text, '|', absl::SkipEmpty())) {
    std::vector<int> numbers;
    for (const absl::string_view part : absl::StrSplit(set, ' ', absl::SkipEmpty())) {
      int number = 0;
      if (absl::SimpleAtoi(part, &number)) numbers.push_back(number);
    }
    if (!numbers.empty()) sets.push_back(std::move(numbers));
  }
  return sets;
}

absl::StatusOr<int> RuleCall::dimension(const std::string& name, std::size_t dims) const {
  const Value* value = argument(name);
  const auto* given = value == nullptr ? nullptr : value->as<std::int64_t>();
  if (given == nullptr) return absl::UnimplementedError(absl::StrCat("argument '", name, "' must be one dimension"));
  return wrapDimension(name, *given, dims);
}

absl::StatusOr<std::vector<int>> RuleCall::dimensions(const std::string& name, std::size_t dims) const {
  const Value* value = argument(name);
  if (value == nullptr || value->isNone()) {
    std::vector<int> all(dims);
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  std::vector<std::int64_t> given;
  if (const auto* one = value->as<std::int64_t>()) given = {*one};
  if (const auto* list = value->as<std::vector<std::int64_t>>()) given = *list;
  std::vector<int> result;
  for (const std::int64_t dim : given) {
    const absl::StatusOr<int> wrapped = wrapDimension(name, dim, dims);
    if (!wrapped.ok()) return wrapped.status();
    result.push_back(*wrapped);
  }
  return result;
}

const Rule* findRule(const std::string& op) {
  static const Table table = makeTable();
  if (const auto it = table.find(op); it != table.end()) return it->second;
  const auto it = table.find(functionalName(op));
  return it == table.end() ? nullptr : it->second;
}

}  // namespace dtorch
