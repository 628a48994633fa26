#pragma once
#include <cstdint>
#include <optional>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "client/cpp/session.h"
#include "client/cpp/site.h"
#include "client/cpp/tensor.h"

namespace dtorch {

// Typed names for common operators; each is one call(). Semantics, broadcasting and dtype promotion are ATen's.

using Sizes = std::vector<std::int64_t>;

/// A C++ number, as an argument. (A Tensor does not convert to it, so that overloads tell them apart.)
using Scalar = Value;

inline Tensor add(const Tensor& a, const Tensor& b, Site s = std::source_location::current()) {
  return call("aten::add.Tensor", {a, b}, {}, s);
}
inline Tensor add(const Tensor& a, Scalar b, Site s = std::source_location::current()) {
  return call("aten::add.Scalar", {a, b}, {}, s);
}
inline Tensor sub(const Tensor& a, const Tensor& b, Site s = std::source_location::current()) {
  return call("aten::sub.Tensor", {a, b}, {}, s);
}
inline Tensor sub(const Tensor& a, Scalar b, Site s = std::source_location::current()) {
  return call("aten::sub.Scalar", {a, b}, {}, s);
}
inline Tensor mul(const Tensor& a, const Tensor& b, Site s = std::source_location::current()) {
  return call("aten::mul.Tensor", {a, b}, {}, s);
}
inline Tensor mul(const Tensor& a, Scalar b, Site s = std::source_location::current()) {
  return call("aten::mul.Scalar", {a, b}, {}, s);
}
inline Tensor div(const Tensor& a, const Tensor& b, Site s = std::source_location::current()) {
  return call("aten::div.Tensor", {a, b}, {}, s);
}
inline Tensor div(const Tensor& a, Scalar b, Site s = std::source_location::current()) {
  return call("aten::div.Scalar", {a, b}, {}, s);
}
inline Tensor eq(const Tensor& a, const Tensor& b, Site s = std::source_location::current()) {
  return call("aten::eq.Tensor", {a, b}, {}, s);
}
inline Tensor eq(const Tensor& a, Scalar b, Site s = std::source_location::current()) {
  return call("aten::eq.Scalar", {a, b}, {}, s);
}
inline Tensor gt(const Tensor& a, Scalar b, Site s = std::source_location::current()) {
  return call("aten::gt.Scalar", {a, b}, {}, s);
}

inline Tensor neg(const Tensor& a, Site s = std::source_location::current()) { return call("aten::neg", {a}, {}, s); }
inline Tensor exp(const Tensor& a, Site s = std::source_location::current()) { return call("aten::exp", {a}, {}, s); }
inline Tensor log(const Tensor& a, Site s = std::source_location::current()) { return call("aten::log", {a}, {}, s); }
inline Tensor relu(const Tensor& a, Site s = std::source_location::current()) { return call("aten::relu", {a}, {}, s); }

inline Tensor mm(const Tensor& a, const Tensor& b, Site s = std::source_location::current()) {
  return call("aten::mm", {a, b}, {}, s);
}
inline Tensor matmul(const Tensor& a, const Tensor& b, Site s = std::source_location::current()) {
  return call("aten::matmul", {a, b}, {}, s);
}
/// bias + a @ b.
inline Tensor addmm(const Tensor& bias, const Tensor& a, const Tensor& b, Site s = std::source_location::current()) {
  return call("aten::addmm", {bias, a, b}, {}, s);
}
inline Tensor transpose(const Tensor& a, std::int64_t dim0, std::int64_t dim1,
                        Site s = std::source_location::current()) {
  return call("aten::transpose.int", {a, dim0, dim1}, {}, s);
}

/// Over all dimensions, to a tensor without any.
inline Tensor sum(const Tensor& a, Site s = std::source_location::current()) { return call("aten::sum", {a}, {}, s); }
inline Tensor sum(const Tensor& a, Sizes dims, bool keepdim = false, Site s = std::source_location::current()) {
  return call("aten::sum.dim_IntList", {a, std::move(dims), keepdim}, {}, s);
}
inline Tensor mean(const Tensor& a, Site s = std::source_location::current()) { return call("aten::mean", {a}, {}, s); }
inline Tensor mean(const Tensor& a, Sizes dims, bool keepdim = false, Site s = std::source_location::current()) {
  return call("aten::mean.dim", {a, std::move(dims), keepdim}, {}, s);
}
inline Tensor argmax(const Tensor& a, std::optional<std::int64_t> dim = {}, bool keepdim = false,
                     Site s = std::source_location::current()) {
  return call("aten::argmax", {a, dim, keepdim}, {}, s);
}
inline Tensor softmax(const Tensor& a, std::int64_t dim, Site s = std::source_location::current()) {
  return call("aten::softmax.int", {a, dim}, {}, s);
}
inline Tensor logSoftmax(const Tensor& a, std::int64_t dim, Site s = std::source_location::current()) {
  return call("aten::log_softmax.int", {a, dim}, {}, s);
}

/// Where a factory's tensor lies and what it is of. No mesh: all workers; no placements: Replicate.
struct FactoryOptions {
  DType dtype = DType::kFloat32;
  Mesh mesh;
  Placements placements;
  CallOptions call() const { return {{{"dtype", dtype}}, mesh, placements}; }
};
inline Tensor zeros(Session& session, Sizes sizes, const FactoryOptions& options = {},
                    Site s = std::source_location::current()) {
  return session.call("aten::zeros", {std::move(sizes)}, options.call(), s);
}
inline Tensor ones(Session& session, Sizes sizes, const FactoryOptions& options = {},
                   Site s = std::source_location::current()) {
  return session.call("aten::ones", {std::move(sizes)}, options.call(), s);
}
inline Tensor full(Session& session, Sizes sizes, Scalar value, const FactoryOptions& options = {},
                   Site s = std::source_location::current()) {
  return session.call("aten::full", {std::move(sizes), std::move(value)}, options.call(), s);
}

}  // namespace dtorch
