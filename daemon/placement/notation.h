#pragma once
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/placement/factors.h"
#include "daemon/placement/rule.h"

namespace dtorch {

/// The factors that a notation gives for a call: "b m k, k n -> b m n; k:sum".
///
/// One term a tensor argument of the schema, then one an output (the last repeats). In a term, one word a dimension:
/// - a name: the factor of that name; `[name]`: the dimension stays whole; `1`: whole;
/// - `...`: any number of dimensions, aligned on the right between terms;
/// - `*`, alone: all dimensions stay whole.
/// A tensor with fewer dimensions than its term has those on the right; a dimension that broadcasts stays whole. Terms
/// of arguments that are None or numbers are passed over. After `;`, each at most once:
/// - `k:sum m:max`: outputs that lack the factor become Partial;
/// - `full k m`: sharded only if every rank has a part;
/// - `linear 0 1|2`, `moved 0`: sets of terms, see Factors; `addend 0`; `linear-float 0`: of floating-point tensors;
/// - `sizes name=0`: argument `name` holds output 0's sizes; `name=0.1`: that of its dimension 1.
/// UNIMPLEMENTED: the tensors do not have the dimensions of the notation.
absl::StatusOr<Factors> notationFactors(const RuleCall& call, absl::string_view notation);

/// OK, or INVALID_ARGUMENT: `notation` is not understood.
absl::Status checkNotation(absl::string_view notation);

/// OK, or INVALID_ARGUMENT: a notation that is understood has more terms than an operator of this schema has tensors.
absl::Status checkTerms(absl::string_view notation, const c10::FunctionSchema& schema);

}  // namespace dtorch
