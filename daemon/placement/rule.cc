#include "daemon/placement/rule.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "daemon/placement/notation.h"
#include "dispatch/prepared_call.h"

namespace dtorch {
namespace {

// Each step updates parameters and their states element by element, all of a list in one kernel.
constexpr std::array<absl::string_view, 3> kFusedOptimizers = {"aten::_fused_adam_", "aten::_fused_adamw_",
                                                               "aten::_fused_sgd_"};

// Overloads of operators with a rule that run on whole tensors all the same, and why.
struct WholeOnly {
  absl::string_view op;
  const char* why;
};
constexpr const char* kNewTensors = "over split dimensions it takes a program, which makes new tensors";
constexpr const char* kAllElements = "it looks at all elements together";
constexpr const char* kOneByOne = "call the form for one tensor on each";
constexpr const char* kTolerance = "its tolerance is a tensor: give a number";
constexpr const char* kNoCase = "no case has proven its rule";
constexpr const char* kNumbers = "all but what it looks up are numbers";
constexpr std::array kWholeOnly = std::to_array<WholeOnly>({
    {"aten::_foreach_norm.Scalar_out", kNewTensors},
    {"aten::_batch_norm_with_update.out", kNoCase},
    {"aten::_native_batch_norm_legit.out", kNoCase},
    {"aten::_stack.out", "its out argument is turned into another shape"},
    {"aten::atleast_1d.Sequence", kOneByOne},
    {"aten::atleast_2d.Sequence", kOneByOne},
    {"aten::atleast_3d.Sequence", kOneByOne},
    {"aten::bucketize.Scalar", kNumbers},
    {"aten::bucketize.Scalar_out", kNumbers},
    {"aten::conj", "it makes a view that is conjugated when it is read"},
    {"aten::linalg_matrix_rank.out_tol_tensor", kTolerance},
    {"aten::linalg_matrix_rank.tol_tensor", kTolerance},
    {"aten::linalg_pinv.out_rcond_tensor", kTolerance},
    {"aten::linalg_pinv.rcond_tensor", kTolerance},
    {"aten::median", kAllElements},
    {"aten::median.out", kAllElements},
    {"aten::nanmedian", kAllElements},
    {"aten::nanmedian.out", kAllElements},
    {"aten::narrow.Tensor", "its start is a value"},
    {"aten::new_empty.out", kNewTensors},
    {"aten::new_full.out", kNewTensors},
    {"aten::new_ones.out", kNewTensors},
    {"aten::new_zeros.out", kNewTensors},
    {"aten::nll_loss.out", kNewTensors},
    {"aten::nll_loss2d.out", kNewTensors},
    {"aten::nll_loss2d_forward.output", kNewTensors},
    {"aten::nll_loss_forward.output", kNewTensors},
    {"aten::norm.ScalarOpt_dtype_out", kNewTensors},
    {"aten::norm.Scalar_out", kNewTensors},
    {"aten::randint_like.Tensor", "what it draws depends on a tensor's value"},
    {"aten::randint_like.Tensor_generator", "what it draws depends on a tensor's value"},
    {"aten::searchsorted.Scalar", kNumbers},
    {"aten::searchsorted.Scalar_out", kNumbers},
});

using Table = absl::flat_hash_map<absl::string_view, const Rule*>;

Table makeTable() {
  Table table;
  for (const absl::Span<const Rule> rules : ruleTables()) {
    for (const Rule& rule : rules) table.emplace(rule.op, &rule);
  }
  return table;
}

// "aten::add_" -> "aten::add"; empty when the name is not of an in-place form.
std::string functionalName(absl::string_view base) {
  const bool inPlace = base.size() > 2 && base.back() == '_' && base[base.size() - 2] != '_';
  return inPlace ? std::string(base.substr(0, base.size() - 1)) : std::string();
}

// "aten::view.dtype_out" -> "aten::view.dtype": the overload whose results it writes.
std::string withoutOut(absl::string_view name) {
  const bool named = name.find('.') != absl::string_view::npos;
  return std::string(named && absl::EndsWith(name, "_out") ? name.substr(0, name.size() - 4) : name);
}

std::optional<FoundRule> inTables(const std::string& name, const std::string& base, const RuleBook& book) {
  static const Table table = makeTable();
  for (const std::string& key : {name, withoutOut(name), base}) {
    if (const auto it = table.find(key); it != table.end()) {
      return FoundRule{it->second->family, std::string(it->second->detail), false};
    }
    if (const std::string* notation = book.find(key)) return FoundRule{notationFactors, *notation, false};
  }
  return std::nullopt;
}

// Whether a family sees to random numbers: it draws for the whole tensor, or refuses calls that draw.
bool seesToRandom(RuleFunction family) {
  const auto has = [&](absl::Span<const Rule> rules) {
    return std::any_of(rules.begin(), rules.end(), [&](const Rule& rule) { return rule.family == family; });
  };
  return has(randomRules()) || has(attentionRules());
}

// Whether some overload of the name carries the tag: those of the lists' elements are not known by their own names.
bool isPointwise(const std::string& base) {
  for (const char* overload : {"", "Tensor", "Scalar"}) {
    const auto op = c10::Dispatcher::singleton().findSchema({base, overload});
    if (op && op->hasTag(at::Tag::pointwise)) return true;
  }
  return false;
}

// Many in-place forms do not carry the tag of the operator that they are forms of.
bool hasPointwiseTag(const c10::OperatorHandle& op) {
  if (op.hasTag(at::Tag::pointwise)) return true;
  const std::string functional = functionalName(op.operator_name().name);
  if (functional.empty()) return false;
  const auto form = c10::Dispatcher::singleton().findSchema({functional, op.operator_name().overload_name});
  return form && form->hasTag(at::Tag::pointwise);
}

std::optional<FoundRule> ofBase(const std::string& name, const std::string& base, bool tagged, const RuleBook& book) {
  if (std::optional<FoundRule> found = inTables(name, base, book)) return found;
  const std::string functional = functionalName(base);
  if (!functional.empty()) {
    const std::string overload = name.substr(base.size());
    if (std::optional<FoundRule> found = inTables(functional + overload, functional, book)) return found;
  }
  // A view's form that copies.
  if (absl::string_view view = base; absl::ConsumeSuffix(&view, "_copy")) {
    const std::string original(view);
    if (std::optional<FoundRule> found = inTables(original + name.substr(base.size()), original, book)) return found;
  }
  if (tagged && notPointwise(functional.empty() ? base : functional) == nullptr) {
    return FoundRule{pointwiseFactors, "", false};
  }
  return std::nullopt;
}

// Whether a client can call it with sharded tensors, as far as its schema tells.
bool takesShards(const c10::OperatorHandle& op) {
  // Arguments that no client can give.
  constexpr absl::string_view kOthers[] = {"Storage", "Stream", "Generator ", "QScheme"};
  const std::vector<c10::Argument>& arguments = op.schema().arguments();
  const bool callable = std::all_of(arguments.begin(), arguments.end(), [&](const c10::Argument& argument) {
    const std::string type = argument.type()->annotation_str();
    return std::none_of(std::begin(kOthers), std::end(kOthers),
                        [&](absl::string_view other) { return absl::StrContains(type, other); });
  });
  // Tensors with named dimensions are not sent.
  const std::string& overload = op.operator_name().overload_name;
  const bool named = absl::StrContains(overload, "name");
  const bool writesRandomOut =
      op.hasTag(at::Tag::nondeterministic_seeded) &&
      std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument& argument) { return argument.is_out(); });
  return callable && !named && !writesRandomOut && op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU);
}

absl::StatusOr<int> wrapDimension(absl::string_view name, std::int64_t given, std::size_t dims) {
  const auto count = static_cast<std::int64_t>(dims);
  const std::int64_t dim = given < 0 ? given + count : given;
  if (dim >= 0 && dim < count) return static_cast<int>(dim);
  return absl::InvalidArgumentError(
      absl::StrCat("argument '", name, "' names dimension ", given, "; the tensor has ", dims));
}

}  // namespace

std::vector<absl::Span<const Rule>> ruleTables() {
  return {alongDimRules(),  attentionRules(), convolutionRules(), factoryRules(),   indexingRules(),
          joinRules(),      linalgRules(),    lossRules(),        matmulRules(),    normalizationRules(),
          pointwiseRules(), poolingRules(),   randomRules(),      reductionRules(), viewRules()};
}

const Value* RuleCall::argument(absl::string_view name) const {
  const int index = position(name);
  return index < 0 ? nullptr : &arguments[static_cast<std::size_t>(index)];
}

int RuleCall::position(absl::string_view name) const {
  const auto index = schema.argumentIndexWithName(std::string(name));
  return index ? *index : -1;
}

int RuleCall::input(absl::string_view name) const {
  const Value* value = argument(name);
  const auto* tensor = value == nullptr ? nullptr : value->as<TensorArg>();
  return tensor == nullptr ? -1 : static_cast<int>(tensor->index);
}

std::int64_t RuleCall::integer(absl::string_view name, std::int64_t otherwise) const {
  const Value* value = argument(name);
  const auto* given = value == nullptr ? nullptr : value->as<std::int64_t>();
  return given == nullptr ? otherwise : *given;
}

bool RuleCall::flag(absl::string_view name, bool otherwise) const {
  const Value* value = argument(name);
  const auto* given = value == nullptr ? nullptr : value->as<bool>();
  return given == nullptr ? otherwise : *given;
}

absl::StatusOr<int> RuleCall::dimension(absl::string_view name, std::size_t dims) const {
  const Value* value = argument(name);
  const auto* given = value == nullptr ? nullptr : value->as<std::int64_t>();
  if (given == nullptr) return absl::UnimplementedError(absl::StrCat("argument '", name, "' must be one dimension"));
  if (dims == 0) return absl::UnimplementedError("its tensor has no dimension");
  return wrapDimension(name, *given, dims);
}

absl::StatusOr<std::vector<int>> RuleCall::dimensions(absl::string_view name, std::size_t dims) const {
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
  if (dims == 0) return result;
  for (const std::int64_t dim : given) {
    const absl::StatusOr<int> wrapped = wrapDimension(name, dim, dims);
    if (!wrapped.ok()) return wrapped.status();
    result.push_back(*wrapped);
  }
  return result;
}

absl::StatusOr<FoundRule> findRule(const c10::OperatorHandle& op, const RuleBook& book) {
  const std::string name = nameOf(op.operator_name());
  const auto* whole =
      std::find_if(kWholeOnly.begin(), kWholeOnly.end(), [&](const WholeOnly& each) { return each.op == name; });
  if (whole != kWholeOnly.end()) return absl::UnimplementedError(whole->why);
  const std::string& base = op.operator_name().name;
  const bool random = op.hasTag(at::Tag::nondeterministic_seeded);
  std::optional<FoundRule> own = ofBase(name, base, hasPointwiseTag(op) && !random, book);
  if (own && random && !seesToRandom(own->family)) own.reset();
  if (own) return *std::move(own);
  if (random) {
    return absl::UnimplementedError("it draws random numbers, which must be the same however its inputs are placed");
  }
  constexpr absl::string_view kForeach = "aten::_foreach_";
  if (absl::StartsWith(base, kForeach)) {
    const std::string element = absl::StrCat("aten::", base.substr(kForeach.size()));
    const std::string functional = functionalName(element);
    const bool tagged = isPointwise(functional.empty() ? element : functional);
    if (std::optional<FoundRule> found = ofBase(element, element, tagged, book)) {
      found->foreach = true;
      return *std::move(found);
    }
  }
  if (std::find(kFusedOptimizers.begin(), kFusedOptimizers.end(), base) != kFusedOptimizers.end()) {
    return FoundRule{pointwiseFactors, "", true};
  }
  const char* exception = notPointwise(base);
  return absl::UnimplementedError(exception == nullptr ? "it has no placement rule" : exception);
}

std::vector<std::pair<std::string, bool>> ruledOperators(const RuleBook& book) {
  std::vector<std::pair<std::string, bool>> all;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || op->hasTag(at::Tag::inplace_view)) continue;
    const absl::StatusOr<FoundRule> rule = takesShards(*op) ? findRule(*op, book) : absl::UnimplementedError("");
    if (rule.ok()) all.emplace_back(nameOf(name), rule->family == pointwiseFactors);
  }
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace dtorch
