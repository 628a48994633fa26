#pragma once
#include <ATen/core/function_schema.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/tensor_meta.h"
#include "core/value.h"
#include "daemon/placement/factors.h"

namespace dtorch {

/// What a rule is asked about: one operator with bound arguments and global metadata.
struct RuleCall {
  const c10::FunctionSchema& schema;
  /// Complete, in schema order; TensorArg indices refer to `inputs`.
  const std::vector<Value>& arguments;
  absl::Span<const TensorMeta* const> inputs;
  const std::vector<TensorMeta>& outputs;

  /// The bound argument called `name`, or null when the schema has none.
  const Value* argument(const std::string& name) const;
  /// Its position in the schema, or -1.
  int position(const std::string& name) const;
  /// A dimension argument, wrapped into 0..dims-1.
  absl::StatusOr<int> dimension(const std::string& name, std::size_t dims) const;
  /// A list of dimensions (or one): None and, for reductions, an empty list mean all.
  absl::StatusOr<std::vector<int>> dimensions(const std::string& name, std::size_t dims) const;
};

/// Works out the factors of one call. UNIMPLEMENTED: this combination of arguments is not covered yet.
using RuleFunction = absl::StatusOr<Factors> (*)(const RuleCall& call, absl::string_view detail);

/// One line of a rule table: operator, family, and what the family needs to know (einsum letters, linearity, ...).
struct Rule {
  absl::string_view op;  // schema name
  RuleFunction family;
  absl::string_view detail;
};

/// Sets of arguments in a rule's detail: "0|1|0 2" is {0}, {1} and {0, 2}.
std::vector<std::vector<int>> argumentSets(absl::string_view text);

/// The tables, one for each family; each stands in a file of its own: rules/<family>.cc.
absl::Span<const Rule> pointwiseRules();
absl::Span<const Rule> matmulRules();
absl::Span<const Rule> reductionRules();
absl::Span<const Rule> alongDimRules();
absl::Span<const Rule> viewRules();

/// The family of every operator that carries LibTorch's pointwise tag and has no row of its own.
absl::StatusOr<Factors> pointwiseFactors(const RuleCall& call, absl::string_view detail);
/// Operators that carry the pointwise tag and are none, with the reason.
const char* notPointwise(absl::string_view op);

/// The rule of `op`, or null. `op` is found by its schema name; in-place forms ("aten::add_.Tensor") use the row of the
/// functional one.
const Rule* findRule(const std::string& op);

}  // namespace dtorch
