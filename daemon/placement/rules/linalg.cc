#include <array>

#include "daemon/placement/notation.h"
#include "daemon/placement/rule.h"

namespace dtorch {
namespace {

// Matrices are the last two dimensions, and whole; what is before them are batches.
constexpr absl::string_view kMatrix = "... [m] [n] -> ... [m] [n]";
constexpr absl::string_view kScalar = "... [m] [n] -> ...";
constexpr absl::string_view kVector = "... [m] [n] -> ... [k]";
constexpr absl::string_view kMatrixAndInfo = "... [m] [n] -> ... [m] [n], ...";
constexpr absl::string_view kTwoToMatrix = "... [m] [n], ... [m] [k] -> ... [n] [k]";

constexpr std::array kRules = std::to_array<Rule>({
    {"aten::cholesky", notationFactors, kMatrix},
    {"aten::linalg_cholesky", notationFactors, kMatrix},
    {"aten::linalg_cholesky_ex", notationFactors, kMatrixAndInfo},
    {"aten::cholesky_inverse", notationFactors, kMatrix},
    {"aten::cholesky_solve", notationFactors, kTwoToMatrix},
    {"aten::_cholesky_solve_helper", notationFactors, kTwoToMatrix},
    {"aten::inverse", notationFactors, kMatrix},
    {"aten::linalg_inv", notationFactors, kMatrix},
    {"aten::linalg_inv_ex", notationFactors, kMatrixAndInfo},
    {"aten::linalg_pinv", notationFactors, "... [m] [n] -> ... [n] [m]"},
    {"aten::linalg_pinv.atol_rtol_float", notationFactors, "... [m] [n] -> ... [n] [m]"},
    {"aten::pinverse", notationFactors, "... [m] [n] -> ... [n] [m]"},
    {"aten::det", notationFactors, kScalar},
    {"aten::linalg_det", notationFactors, kScalar},
    {"aten::logdet", notationFactors, kScalar},
    {"aten::slogdet", notationFactors, kScalar},
    {"aten::linalg_slogdet", notationFactors, kScalar},
    {"aten::linalg_eig", notationFactors, "... [n] [n] -> ... [n], ... [n] [n]"},
    {"aten::linalg_eigvals", notationFactors, kVector},
    {"aten::_linalg_eigvals", notationFactors, kVector},
    {"aten::linalg_eigh", notationFactors, "... [n] [n] -> ... [n], ... [n] [n]"},
    {"aten::_linalg_eigh", notationFactors, "... [n] [n] -> ... [n], ... [n] [n]"},
    {"aten::linalg_eigvalsh", notationFactors, kVector},
    {"aten::svd", notationFactors, "... [m] [n] -> ... [m] [k], ... [k], ... [n] [k]"},
    {"aten::linalg_svd", notationFactors, "... [m] [n] -> ... [m] [k], ... [k], ... [k] [n]"},
    {"aten::_linalg_svd", notationFactors, "... [m] [n] -> ... [m] [k], ... [k], ... [k] [n]"},
    {"aten::linalg_svdvals", notationFactors, kVector},
    {"aten::qr", notationFactors, "... [m] [n] -> ... [m] [k]"},
    {"aten::linalg_qr", notationFactors, "... [m] [n] -> ... [m] [k]"},
    {"aten::geqrf", notationFactors, "... [m] [n] -> ... [m] [n], ... [k]"},
    {"aten::orgqr", notationFactors, "... [m] [n], ... [k] -> ... [m] [n]"},
    {"aten::linalg_householder_product", notationFactors, "... [m] [n], ... [k] -> ... [m] [n]"},
    {"aten::ormqr", notationFactors, "... [m] [n], ... [k], ... [p] [q] -> ... [p] [q]"},
    {"aten::linalg_lu", notationFactors, "... [m] [n] -> ... [m] [n]"},
    {"aten::linalg_lu_factor", notationFactors, "... [m] [n] -> ... [m] [n], ... [k]"},
    {"aten::linalg_lu_factor_ex", notationFactors, "... [m] [n] -> ... [m] [n], ... [k], ..."},
    {"aten::_lu_with_info", notationFactors, "... [m] [n] -> ... [m] [n], ... [k], ..."},
    {"aten::lu_unpack", notationFactors, "... [m] [n], ... [k] -> ... [m] [n]"},
    {"aten::lu_solve", notationFactors, "... [n] [k], ... [n] [n], ... [n] -> ... [n] [k]"},
    {"aten::linalg_lu_solve", notationFactors, "... [n] [n], ... [n], ... [n] [k] -> ... [n] [k]"},
    {"aten::linalg_solve_triangular", notationFactors, kTwoToMatrix},
    {"aten::triangular_solve", notationFactors, "... [n] [k], ... [n] [n] -> ... [n] [k], ... [n] [n]"},
    {"aten::linalg_ldl_factor", notationFactors, "... [n] [n] -> ... [n] [n], ... [n]"},
    {"aten::linalg_ldl_factor_ex", notationFactors, "... [n] [n] -> ... [n] [n], ... [n], ..."},
    {"aten::linalg_ldl_solve", notationFactors, "... [n] [n], ... [n], ... [n] [k] -> ... [n] [k]"},
    {"aten::linalg_matrix_exp", notationFactors, kMatrix},
    {"aten::matrix_exp", notationFactors, kMatrix},
    {"aten::linalg_cond", notationFactors, kScalar},
    {"aten::linalg_matrix_rank", notationFactors, kScalar},
    {"aten::tril", notationFactors, "... [m] [n] -> ... [m] [n]; linear 0"},
    {"aten::triu", notationFactors, "... [m] [n] -> ... [m] [n]; linear 0"},
    {"aten::linalg_vander", notationFactors, "... [n] -> ... [n] [k]"},
    {"aten::trace", notationFactors, "[m] [n] -> ; linear 0"},
});

}  // namespace

absl::Span<const Rule> linalgRules() { return kRules; }

}  // namespace dtorch
