#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/tensor_meta.h"
#include "core/value.h"
#include "daemon/placement/factors.h"
#include "daemon/placement/rule_book.h"

namespace dtorch {

/// What a rule is asked about: one operator with bound arguments and global metadata, without what is only written to
/// (out=). For an operator on lists of tensors that go together (foreach), one element of each.
struct RuleCall {
  const c10::FunctionSchema& schema;
  /// Complete, in schema order; TensorArg indices refer to `inputs`.
  std::vector<Value> arguments;
  std::vector<const TensorMeta*> inputs;  // in schema order
  std::vector<const TensorMeta*> outputs;

  /// The bound argument called `name`, or null when the schema has none.
  const Value* argument(absl::string_view name) const;
  /// Its position in the schema, or -1.
  int position(absl::string_view name) const;
  /// The input that is argument `name`; -1: it has none, or is a number or None.
  int input(absl::string_view name) const;
  /// A number argument; `otherwise`: the schema has none, or it is None.
  std::int64_t integer(absl::string_view name, std::int64_t otherwise) const;
  bool flag(absl::string_view name, bool otherwise = false) const;
  /// A dimension argument, wrapped into 0..dims-1. UNIMPLEMENTED: a tensor without dimensions, which torch lets count
  /// as having one.
  absl::StatusOr<int> dimension(absl::string_view name, std::size_t dims) const;
  /// A list of dimensions (or one): None, and no such argument, mean all. None of them for a tensor without dimensions.
  absl::StatusOr<std::vector<int>> dimensions(absl::string_view name, std::size_t dims) const;
};

/// Works out the factors of one call. UNIMPLEMENTED: this combination of arguments is not covered.
using RuleFunction = absl::StatusOr<Factors> (*)(const RuleCall& call, absl::string_view detail);

/// One line of a rule table: operator, family, and what the family needs to know (a notation, linearity, ...).
struct Rule {
  /// Schema name; without overload: all of them. In-place and out= forms follow the functional one.
  absl::string_view op;
  RuleFunction family;
  absl::string_view detail;
};

/// The tables, one for each family; each stands in a file of its own: rules/<family>.cc.
absl::Span<const Rule> alongDimRules();
absl::Span<const Rule> attentionRules();
absl::Span<const Rule> convolutionRules();
absl::Span<const Rule> factoryRules();
absl::Span<const Rule> indexingRules();
absl::Span<const Rule> joinRules();
absl::Span<const Rule> linalgRules();
absl::Span<const Rule> lossRules();
absl::Span<const Rule> matmulRules();
absl::Span<const Rule> normalizationRules();
absl::Span<const Rule> pointwiseRules();
absl::Span<const Rule> poolingRules();
absl::Span<const Rule> randomRules();  // of operators that draw random numbers: they have no others
absl::Span<const Rule> reductionRules();
absl::Span<const Rule> viewRules();

/// All of them.
std::vector<absl::Span<const Rule>> ruleTables();

/// The family of every operator that carries LibTorch's pointwise tag and has no row of its own.
absl::StatusOr<Factors> pointwiseFactors(const RuleCall& call, absl::string_view detail);
/// Operators that carry the pointwise tag and are none, with the reason.
const char* notPointwise(absl::string_view op);

/// How an operator's rule is found.
struct FoundRule {
  RuleFunction family = nullptr;
  std::string detail;
  /// The operator works on lists element by element; the rule is that of an element.
  bool foreach = false;
};

/// The rule of `op`: that of the tables, or of `book`. UNIMPLEMENTED: it has none, and why.
absl::StatusOr<FoundRule> findRule(const c10::OperatorHandle& op, const RuleBook& book);

/// All operators that have a rule and can be called: names with overloads, and whether they are pointwise.
std::vector<std::pair<std::string, bool>> ruledOperators(const RuleBook& book);

}  // namespace dtorch
