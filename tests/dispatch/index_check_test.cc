// Values that LibTorch's kernels take on trust are refused before a kernel sees them; right ones pass.
#include <ATen/ATen.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "dispatch/binding.h"
#include "dispatch/prepared_call.h"
#include "tests/catch.h"

namespace dtorch {
namespace {

using Ints = std::vector<std::int64_t>;
constexpr std::int64_t kFar = std::int64_t{1} << 40;

absl::StatusOr<std::vector<at::Tensor>> run(const std::string& name, const std::vector<Value>& given,
                                            const std::vector<at::Tensor>& tensors, Arguments named = {}) {
  named.positional = given;
  const c10::OperatorHandle op = *findOperator(name);
  absl::StatusOr<std::vector<Value>> bound = bindArguments(op.schema(), named);
  if (!bound.ok()) return bound.status();
  const PreparedCall call = *PreparedCall::create(op, *bound, c10::Device(c10::kCPU));
  std::vector<at::Tensor> outputs;
  if (absl::Status status = call.run(tensors, &outputs); !status.ok()) return status;
  return outputs;
}

// The refusal names operator, argument and value.
void refused(const absl::Status& status, const std::string& op, const std::string& argument, const std::string& value) {
  INFO(op << ", " << argument << " of " << value << ": " << status);
  CHECK(absl::IsInvalidArgument(status));
  const std::string message(status.message());
  CHECK(message.find("aten::" + op) != std::string::npos);
  CHECK(message.find("'" + argument + "'") != std::string::npos);
  CHECK(message.find(value) != std::string::npos);
}

at::Tensor longs(const Ints& values) { return at::tensor(values, at::kLong); }
at::Tensor ints(const Ints& values) { return at::tensor(values, at::kInt); }
Value t(std::uint32_t i) { return TensorArg{i}; }

TEST_CASE("pivots of lu operators are LibTorch's to check, and it does") {
  const at::Tensor lu = at::eye(3);
  for (const std::int64_t pivot : {std::int64_t{0}, std::int64_t{4}, std::int64_t{-1}, std::int64_t{1} << 30}) {
    const at::Tensor pivots = at::full({3}, pivot, at::kInt);
    CHECK(absl::IsInvalidArgument(run("aten::lu_solve", {t(0), t(1), t(2)}, {at::ones({3, 2}), lu, pivots}).status()));
    CHECK(absl::IsInvalidArgument(
        run("aten::linalg_lu_solve", {t(0), t(1), t(2)}, {lu, pivots, at::ones({3, 2})}).status()));
    CHECK(absl::IsInvalidArgument(run("aten::lu_unpack", {t(0), t(1)}, {lu, pivots}).status()));
  }
}

TEST_CASE("pivots of ldl_solve lie in the matrix, and blocks have two") {
  const at::Tensor ld = at::eye(3);
  const auto solve = [&](const Ints& pivots) {
    return run("aten::linalg_ldl_solve", {t(0), t(1), t(2)}, {ld, ints(pivots), at::ones({3, 2})}).status();
  };
  CHECK(solve({1, 2, 3}).ok());
  CHECK(solve({-2, -2, 3}).ok());
  CHECK(solve({1, -3, -3}).ok());
  refused(solve({1, 2, 4}), "linalg_ldl_solve", "pivots", "4");
  refused(solve({1, 2, -4}), "linalg_ldl_solve", "pivots", "-4");
  refused(solve({1, 2, 1 << 30}), "linalg_ldl_solve", "pivots", "1073741824");
  refused(solve({1, 0, 3}), "linalg_ldl_solve", "pivots", "0");
  refused(solve({1, 2, -3}), "linalg_ldl_solve", "pivots", "-3");  // the block's other row would lie behind the matrix
  refused(solve({-1, 2, -3}), "linalg_ldl_solve", "pivots", "-1");
  refused(solve({-1, -1, -3}), "linalg_ldl_solve", "pivots", "-3");
  // In a batch, each matrix for itself.
  const auto batch = [&](const at::Tensor& pivots) {
    return run("aten::linalg_ldl_solve", {t(0), t(1), t(2)}, {ld.expand({2, 3, 3}), pivots, at::ones({2, 3, 2})})
        .status();
  };
  CHECK(batch(ints({1, -3, -3, -2, -2, 3}).view({2, 3})).ok());
  refused(batch(ints({1, 2, -3, -1, 2, 3}).view({2, 3})), "linalg_ldl_solve", "pivots", "-3");
  // What LibTorch itself factors passes.
  const at::Tensor symmetric = at::randn({20, 20});
  const auto factored = run("aten::linalg_ldl_factor", {t(0)}, {symmetric + symmetric.t()});
  REQUIRE(factored.ok());
  const auto solved =
      run("aten::linalg_ldl_solve", {t(0), t(1), t(2)}, {(*factored)[0], (*factored)[1], at::ones({20, 1})});
  REQUIRE(solved.ok());
  CHECK(at::allclose((symmetric + symmetric.t()).mm((*solved)[0]), at::ones({20, 1}), 1e-2, 1e-2));
}

TEST_CASE("offsets of bags rise within the indices") {
  const at::Tensor table = at::randn({5, 3});
  for (const std::string op : {"embedding_bag", "_embedding_bag", "_embedding_bag_forward_only"}) {
    const auto call = [&](const Ints& offsets) {
      return run("aten::" + op, {t(0), t(1), t(2)}, {table, longs({1, 2, 4}), longs(offsets)}).status();
    };
    CHECK(call({0, 2, 3}).ok());
    refused(call({0, kFar, 3}), op, "offsets", std::to_string(kFar));
    refused(call({0, -1, 3}), op, "offsets", "-1");
    refused(call({0, 3, 1}), op, "offsets", "1");
  }
}

TEST_CASE("the backward of bags reads no row, bag or weight that there is not") {
  const at::Tensor grad = at::ones({2, 3});
  const at::Tensor none = at::empty({0}, at::kLong);
  const auto dense = [&](const at::Tensor& indices, const at::Tensor& bagOf, const at::Tensor& sizes) {
    return run("aten::_embedding_bag_dense_backward", {t(0), t(1), t(2), t(3), t(4), 5, false, 1, Value()},
               {grad, indices, bagOf, sizes, none})
        .status();
  };
  CHECK(dense(longs({1, 2, 4}), longs({0, 0, 1}), longs({2, 1})).ok());
  const std::string op = "_embedding_bag_dense_backward";
  refused(dense(longs({1, 5, 4}), longs({0, 0, 1}), longs({2, 1})), op, "indices", "5");
  refused(dense(longs({1, 2, 4}), longs({0, 2, 1}), longs({2, 1})), op, "offset2bag", "2");
  refused(dense(longs({1, 2, 4}), longs({0, 0}), longs({2, 1})), op, "offset2bag", "2 elements");
  refused(dense(longs({1, 2, 4}), longs({0, 0, 1}), longs({2})), op, "bag_size", "1 elements");
  const auto samples = [&](const at::Tensor& indices, const at::Tensor& offsets, const at::Tensor& bagOf) {
    return run("aten::_embedding_bag_per_sample_weights_backward", {t(0), t(1), t(2), t(3), t(4), 0},
               {grad, at::ones({5, 3}), indices, offsets, bagOf})
        .status();
  };
  CHECK(samples(longs({1, 2, 4}), longs({0, 2}), longs({0, 0, 1})).ok());
  CHECK(samples(longs({1, 2, 4}), longs({0, 2}), none).ok());  // from the offsets
  const std::string weights = "_embedding_bag_per_sample_weights_backward";
  refused(samples(longs({1, kFar, 4}), longs({0, 2}), longs({0, 0, 1})), weights, "indices", std::to_string(kFar));
  refused(samples(longs({1, 2, 4}), longs({0, 1, 2}), none), weights, "offsets", "3 bags");
  refused(samples(longs({1, 2, 4}), longs({0, kFar}), none), weights, "offsets", std::to_string(kFar));
  refused(samples(longs({1, 2, 4}), longs({1, 2}), none), weights, "offsets", "begin with 0");
}

TEST_CASE("indices whose gradient is scaled by their count lie in the table") {
  const auto call = [](const Ints& indices, bool scale) {
    return run("aten::embedding_dense_backward", {t(0), t(1), 5, -1, scale}, {at::ones({2, 3}), longs(indices)})
        .status();
  };
  CHECK(call({1, 4}, true).ok());
  refused(call({1, kFar}, true), "embedding_dense_backward", "indices", std::to_string(kFar));
  refused(call({1, -1}, true), "embedding_dense_backward", "indices", "-1");
  CHECK(call({1, kFar}, false).ok());  // LibTorch passes over it
}

TEST_CASE("segments lie in their data") {
  const at::Tensor data = at::randn({5, 3});
  const auto by = [&](const std::string& name, const Ints& values) {
    return run("aten::segment_reduce", {t(0), "sum"}, {data, longs(values)}, {{}, {{name, t(1)}, {"unsafe", true}}})
        .status();
  };
  CHECK(by("lengths", {2, 3}).ok());
  CHECK(by("offsets", {0, 2, 5}).ok());
  refused(by("lengths", {kFar, 2}), "segment_reduce", "lengths", std::to_string(kFar));
  refused(by("lengths", {-1, 6}), "segment_reduce", "lengths", "-1");
  refused(by("lengths", {3, 3}), "segment_reduce", "lengths", "6");
  refused(by("offsets", {0, kFar, 5}), "segment_reduce", "offsets", std::to_string(kFar));
  refused(by("offsets", {-kFar, 2, 5}), "segment_reduce", "offsets", std::to_string(-kFar));
  const auto backward = [&](const Ints& lengths) {
    return run("aten::_segment_reduce_backward", {t(0), t(1), t(2), "sum"},
               {at::ones({2, 3}), at::ones({2, 3}), data, longs(lengths)}, {{}, {{"lengths", t(3)}}})
        .status();
  };
  CHECK(backward({2, 3}).ok());
  refused(backward({kFar, 3}), "_segment_reduce_backward", "lengths", std::to_string(kFar));
}

TEST_CASE("classes are classes of the input, or to be ignored") {
  const at::Tensor scores = at::randn({2, 3}).log_softmax(1);
  const auto nll = [&](const Ints& target) {
    return run("aten::nll_loss_backward", {t(0), t(1), t(2), Value(), 0, -100, t(3)},
               {at::ones({2}), scores, longs(target), at::scalar_tensor(2.0, at::kFloat)})
        .status();
  };
  CHECK(nll({0, 2}).ok());
  CHECK(nll({-100, 2}).ok());
  refused(nll({0, 3}), "nll_loss_backward", "target", "3");
  refused(nll({-100, kFar}), "nll_loss_backward", "target", std::to_string(kFar));
  const auto images = [&](std::int64_t target) {
    return run("aten::nll_loss2d_backward", {t(0), t(1), t(2), Value(), 0, -100, t(3)},
               {at::ones({1, 2, 2}), at::randn({1, 3, 2, 2}), at::full({1, 2, 2}, target, at::kLong),
                at::scalar_tensor(4.0, at::kFloat)})
        .status();
  };
  CHECK(images(2).ok());
  refused(images(-kFar), "nll_loss2d_backward", "target", std::to_string(-kFar));
  const auto ctc = [](std::int64_t target) {
    return run("aten::_ctc_loss", {t(0), t(1), Ints{6, 6}, Ints{2, 2}},
               {at::randn({6, 2, 4}).log_softmax(2), longs({1, 2, target, 1}).view({2, 2})})
        .status();
  };
  CHECK(ctc(3).ok());
  refused(ctc(4), "_ctc_loss", "targets", "4");
  refused(ctc(-kFar), "_ctc_loss", "targets", std::to_string(-kFar));
}

TEST_CASE("maxima were found in their image") {
  const at::Tensor image = at::randn({1, 1, 4, 4});
  const auto flat = [&](std::int64_t place) {
    return run("aten::max_pool2d_with_indices_backward",
               {t(0), t(1), Ints{2, 2}, Ints{2, 2}, Ints{0, 0}, Ints{1, 1}, false, t(2)},
               {at::ones({1, 1, 2, 2}), image, at::full({1, 1, 2, 2}, place, at::kLong)})
        .status();
  };
  CHECK(flat(15).ok());
  refused(flat(16), "max_pool2d_with_indices_backward", "indices", "16");
  refused(flat(-kFar), "max_pool2d_with_indices_backward", "indices", std::to_string(-kFar));
  const auto adaptive = [&](std::int64_t place) {
    return run("aten::adaptive_max_pool3d_backward", {t(0), t(1), t(2)},
               {at::ones({1, 1, 1, 1, 1}), at::randn({1, 1, 2, 2, 2}), at::full({1, 1, 1, 1, 1}, place, at::kLong)})
        .status();
  };
  CHECK(adaptive(7).ok());
  refused(adaptive(8), "adaptive_max_pool3d_backward", "indices", "8");
}

TEST_CASE("the least integer is not divided by -1") {
  const auto quotient = [](const at::Tensor& dividend, const Value& divisor, std::vector<at::Tensor> more,
                           const char* name) {
    std::vector<at::Tensor> tensors = {dividend};
    tensors.insert(tensors.end(), more.begin(), more.end());
    return run(name, {t(0), divisor}, tensors, Arguments{{}, {{"rounding_mode", Value(std::string("trunc"))}}})
        .status();
  };
  for (const at::ScalarType type : {at::kInt, at::kLong}) {
    const std::int64_t least =
        type == at::kInt ? std::numeric_limits<std::int32_t>::min() : std::numeric_limits<std::int64_t>::min();
    const at::Tensor dividend = at::full({40}, least, type);
    const at::Tensor divisor = at::full({40}, 2, type);
    CHECK(quotient(dividend, t(1), {divisor}, "aten::div.Tensor_mode").ok());
    CHECK(quotient(dividend + 1, Value(-1), {}, "aten::div.Scalar_mode").ok());
    divisor[39] = -1;
    refused(quotient(dividend, t(1), {divisor}, "aten::div.Tensor_mode"), "div", "self", std::to_string(least));
    refused(quotient(dividend, Value(-1), {}, "aten::div.Scalar_mode"), "div", "self", std::to_string(least));
    refused(quotient(dividend, Value(-1), {}, "aten::divide.Scalar_mode"), "divide", "self", std::to_string(least));
    CHECK(quotient(dividend.to(at::kDouble), Value(-1), {}, "aten::div.Scalar_mode").ok());
  }
  // They meet in the result's type.
  const at::Tensor narrow = at::full({3}, std::numeric_limits<std::int32_t>::min(), at::kInt);
  refused(quotient(narrow, Value(std::int64_t{4294967295}), {}, "aten::div.Scalar_mode"), "div", "self", "-2147483648");
  refused(quotient(narrow, t(1), {at::scalar_tensor(4294967295, at::kLong)}, "aten::div.Tensor_mode"), "div", "self",
          "-2147483648");
  // Of 8 and 16 bits it wraps.
  CHECK(quotient(at::full({40}, -128, at::kChar), Value(-1), {}, "aten::div.Scalar_mode").ok());
}

TEST_CASE("tensors that a kernel takes for contiguous are made so, or refused where it writes to them") {
  const at::Tensor x = at::arange(32, at::kFloat).view({1, 8, 4});
  const at::Tensor one = at::ones({1});
  const auto norm = run("aten::native_group_norm", {t(0), t(1), Value(), 1, 8, 4, 1, 1e-5}, {x, one.expand({8})});
  REQUIRE(norm.ok());
  CHECK(at::allclose((*norm)[0], at::group_norm(x, 1, at::ones({8}))));
  const at::Tensor query = at::ones({1, 1, 4, 1}).expand({1, 1, 4, 16});
  const auto attended = run("aten::_scaled_dot_product_flash_attention_for_cpu", {t(0), t(0), t(0)}, {query});
  REQUIRE(attended.ok());
  CHECK(at::allclose((*attended)[0], at::ones({1, 1, 4, 16})));
  const at::Tensor batch = at::randn({4, 6});
  const auto gradient = [&](const at::Tensor& mean, const at::Tensor& deviation) {
    return run("aten::native_batch_norm_backward",
               {t(0), t(1), Value(), Value(), Value(), t(2), t(3), true, 1e-5, std::vector<bool>{true, true, true}},
               {batch, batch, mean, deviation});
  };
  const auto expanded = gradient(at::zeros({1}).expand({6}), one.expand({6}));
  REQUIRE(expanded.ok());
  CHECK(at::allclose((*expanded)[0], (*gradient(at::zeros({6}), at::ones({6})))[0]));
  const absl::Status written =
      run("aten::rrelu_with_noise", {t(0), t(1), 0.1, 0.3, true}, {at::ones({8}).neg(), one.expand({8})}).status();
  CHECK(absl::IsInvalidArgument(written));
  CHECK(std::string(written.message()).find("'noise'") != std::string::npos);
}

}  // namespace
}  // namespace dtorch
