#include "dispatch/index_check.h"

#include <ATen/ScalarOps.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/result_type.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace dtorch {
namespace {

// OK when all of `argument` lies in [least, end), or is `besides`.
absl::Status within(const CallArguments& call, absl::string_view argument, std::int64_t least, std::int64_t end,
                    std::optional<std::int64_t> besides = std::nullopt) {
  const at::Tensor* given = call.values(argument);
  // Floating-point numbers are no indices: the kernel refuses them.
  if (given == nullptr || given->numel() == 0 || !at::isIntegralType(given->scalar_type(), false)) {
    return absl::OkStatus();
  }
  const auto bad = [&](const at::Tensor& values) -> std::optional<std::int64_t> {
    if (values.numel() == 0) return std::nullopt;
    const auto [lowest, highest] = at::aminmax(values);
    if (const auto value = lowest.item<std::int64_t>(); value < least) return value;
    if (const auto value = highest.item<std::int64_t>(); value >= end) return value;
    return std::nullopt;
  };
  std::optional<std::int64_t> value = bad(*given);
  if (value && besides) value = bad(given->masked_select(given->ne(*besides)));
  if (!value) return absl::OkStatus();
  return call.refuse(argument, absl::StrCat("holds ", *value, ", outside ", least, " to ", end - 1));
}

// OK when each row of `argument`, along its last dimension, rises from 0 or more to `end` or less.
absl::Status rises(const CallArguments& call, absl::string_view argument, std::int64_t end) {
  if (absl::Status status = within(call, argument, 0, end + 1); !status.ok()) return status;
  const at::Tensor* given = call.values(argument);
  if (given == nullptr || given->dim() == 0 || given->size(-1) < 2) return absl::OkStatus();
  const at::Tensor falls = given->narrow(-1, 1, given->size(-1) - 1).lt(given->narrow(-1, 0, given->size(-1) - 1));
  if (!falls.any().item<bool>()) return absl::OkStatus();
  const at::Tensor value = given->narrow(-1, 1, given->size(-1) - 1).masked_select(falls)[0];
  return call.refuse(argument, absl::StrCat("falls to ", value.item<std::int64_t>(), "; offsets rise"));
}

// LAPACK's sytrs: a positive pivot is a row; two negative ones after one another are a block of two rows.
absl::Status pivotsOfLdl(const CallArguments& call) {
  const at::Tensor* factors = call.tensor("LD");
  const at::Tensor* pivots = call.values("pivots");
  if (factors == nullptr || pivots == nullptr || pivots->dim() == 0) return absl::OkStatus();
  const std::int64_t rows = sizeOr(factors, -1, 0);
  if (absl::Status status = within(call, "pivots", -rows, rows + 1); !status.ok()) return status;
  const std::optional<std::vector<std::int64_t>> integers = call.integers("pivots");
  if (!integers) return absl::OkStatus();  // not of ints: the kernel refuses them
  const std::vector<std::int64_t>& values = *integers;
  const auto row = static_cast<std::size_t>(std::max<std::int64_t>(pivots->size(-1), 1));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] == 0) return call.refuse("pivots", absl::StrCat("holds 0, outside 1 to ", rows));
    if (values[i] > 0) continue;
    if ((i + 1) % row == 0 || values[i + 1] >= 0) {
      return call.refuse("pivots", absl::StrCat("holds ", values[i], " alone: a block has two negative pivots"));
    }
    ++i;
  }
  return absl::OkStatus();
}

absl::Status offsetsOfBags(const CallArguments& call) {
  const at::Tensor* indices = call.values("indices");
  return indices == nullptr ? absl::OkStatus() : rises(call, "offsets", indices->numel());
}

// The backward kernels of embedding_bag: `rows` of the table, a gradient a bag.
absl::Status bags(const CallArguments& call, std::int64_t rows) {
  const at::Tensor* indices = call.values("indices");
  const at::Tensor* grad = call.tensor("grad");
  if (indices == nullptr || grad == nullptr) return absl::OkStatus();
  const std::int64_t count = indices->numel();
  const std::int64_t bagCount = sizeOr(grad, 0, 0);
  absl::Status status = within(call, "indices", 0, rows);
  if (status.ok()) status = within(call, "offset2bag", 0, bagCount);
  if (status.ok()) status = hasElements(call, "per_sample_weights", count);
  if (status.ok()) status = hasElements(call, "bag_size", bagCount);
  if (!status.ok()) return status;
  const at::Tensor* bagOf = call.values("offset2bag");
  if (bagOf == nullptr || bagOf->numel() > 0) return hasElements(call, "offset2bag", count);
  // It is worked out from the offsets: those before the end begin a bag each.
  const std::optional<std::vector<std::int64_t>> offsets = call.integers("offsets");
  if (count == 0 || !offsets) return absl::OkStatus();
  if (status = rises(call, "offsets", count); !status.ok()) return status;
  const auto begun = std::count_if(offsets->begin(), offsets->end(), [&](std::int64_t at) { return at < count; });
  if (!offsets->empty() && offsets->front() == 0 && begun <= bagCount) return absl::OkStatus();
  return call.refuse("offsets",
                     absl::StrCat("begins ", begun, " bags where grad has ", bagCount, ", or does not begin with 0"));
}

absl::Status bagsOfWeights(const CallArguments& call) { return bags(call, call.integer("num_weights", 0)); }

absl::Status bagsOfSamples(const CallArguments& call) { return bags(call, sizeOr(call.tensor("weight"), 0, 0)); }

// Rows that the table does not have are passed over, but for their count.
absl::Status countedIndices(const CallArguments& call) {
  return call.flag("scale_grad_by_freq") ? within(call, "indices", 0, call.integer("num_weights", 0))
                                         : absl::OkStatus();
}

absl::Status segments(const CallArguments& call) {
  const at::Tensor* data = call.tensor("data");
  if (data == nullptr) return absl::OkStatus();
  const std::int64_t extent = sizeOr(data, call.integer("axis", 0), 0);
  if (absl::Status status = rises(call, "offsets", extent); !status.ok()) return status;
  if (absl::Status status = within(call, "lengths", 0, extent + 1); !status.ok()) return status;
  const at::Tensor* lengths = call.values("lengths");
  if (lengths == nullptr || lengths->numel() == 0 || lengths->dim() == 0) return absl::OkStatus();
  const std::int64_t total = lengths->sum(-1, false, at::kLong).max().item<std::int64_t>();
  if (total <= extent) return absl::OkStatus();
  return call.refuse("lengths", absl::StrCat("adds up to ", total, " where data has ", extent));
}

absl::Status classesOfCtc(const CallArguments& call) {
  const at::Tensor* probabilities = call.tensor("log_probs");
  const at::Tensor* targets = call.values("targets");
  if (probabilities == nullptr || targets == nullptr) return absl::OkStatus();
  const std::int64_t classes = sizeOr(probabilities, -1, 0);
  const auto lengths = call.integers("target_lengths");
  if (targets->dim() != 2 || !lengths || static_cast<std::int64_t>(lengths->size()) != targets->size(0)) {
    return within(call, "targets", 0, classes);
  }
  // What lies behind the end of a row is not read.
  for (std::int64_t row = 0; row < targets->size(0); ++row) {
    const std::int64_t length = (*lengths)[static_cast<std::size_t>(row)];
    if (length < 0 || length > targets->size(1))
      return call.refuse("target_lengths", "is no length of a row of targets");
    const at::Tensor read = targets->select(0, row).narrow(0, 0, length);
    const at::Tensor wrong = read.lt(0).logical_or(read.ge(classes));
    if (!wrong.any().item<bool>()) continue;
    const auto value = read.masked_select(wrong)[0].item<std::int64_t>();
    return call.refuse("targets", absl::StrCat("holds ", value, ", outside 0 to ", classes - 1));
  }
  return absl::OkStatus();
}

// The backward trusts the lengths and what the forward has left for it.
absl::Status gradientOfCtc(const CallArguments& call) {
  const at::Tensor* probabilities = call.tensor("log_probs");
  const at::Tensor* targets = call.tensor("targets");
  const at::Tensor* alpha = call.tensor("log_alpha");
  const auto inputs = call.integers("input_lengths");
  const auto lengths = call.integers("target_lengths");
  if (probabilities == nullptr || targets == nullptr || alpha == nullptr || !inputs || !lengths) {
    return absl::OkStatus();
  }
  if (probabilities->dim() != 3) return call.refuse("log_probs", "has not three dimensions");
  if (absl::Status status = classesOfCtc(call); !status.ok()) return status;
  const std::int64_t batch = probabilities->size(1);
  const std::int64_t blank = call.integer("blank", 0);
  if (blank < 0 || blank >= probabilities->size(2)) return call.refuse("blank", absl::StrCat("is ", blank));
  for (const auto& [argument, values, most] : {std::tuple("input_lengths", &*inputs, probabilities->size(0)),
                                               std::tuple("target_lengths", &*lengths, sizeOr(targets, -1, 0))}) {
    if (static_cast<std::int64_t>(values->size()) != batch) {
      return call.refuse(argument, absl::StrCat("has ", values->size(), " elements for ", batch, " sequences"));
    }
    for (const std::int64_t value : *values) {
      if (value >= 0 && value <= most) continue;
      return call.refuse(argument, absl::StrCat("holds ", value, ", outside 0 to ", most));
    }
  }
  const std::int64_t total = std::accumulate(lengths->begin(), lengths->end(), std::int64_t{0});
  if (targets->dim() == 1 ? total > targets->numel() : targets->dim() != 2 || targets->size(0) != batch) {
    return call.refuse("targets", absl::StrCat("has ", targets->numel(), " elements for lengths of ", total));
  }
  const std::int64_t longest = lengths->empty() ? 0 : *std::max_element(lengths->begin(), lengths->end());
  if (alpha->dim() != 3 || alpha->size(0) != batch || alpha->size(1) < probabilities->size(0) ||
      alpha->size(2) < 2 * longest + 1) {
    return call.refuse("log_alpha", "is not what the forward returned for these arguments");
  }
  if (absl::Status status = hasElements(call, "neg_log_likelihood", batch); !status.ok()) return status;
  return hasElements(call, "grad", batch);
}

absl::Status classesOf(const CallArguments& call, std::int64_t dim) {
  const at::Tensor* self = call.tensor("self");
  if (self == nullptr) return absl::OkStatus();
  return within(call, "target", 0, sizeOr(self, dim, 0), call.integer("ignore_index", -100));
}

absl::Status classes(const CallArguments& call) { return classesOf(call, -1); }

absl::Status classesOfImages(const CallArguments& call) { return classesOf(call, 1); }

// Where in its image, the last `dims` dimensions of `self`, each maximum was found.
absl::Status placesIn(const CallArguments& call, std::int64_t dims) {
  const at::Tensor* self = call.tensor("self");
  if (self == nullptr || self->dim() < dims) return absl::OkStatus();
  std::int64_t places = 1;
  for (std::int64_t d = 1; d <= dims; ++d) places *= self->size(-d);
  return within(call, "indices", 0, places);
}

absl::Status places2d(const CallArguments& call) { return placesIn(call, 2); }

absl::Status places3d(const CallArguments& call) { return placesIn(call, 3); }

struct Row {
  absl::string_view name;
  absl::Status (*check)(const CallArguments& call);
};

// Processors trap on the least integer by -1, of 32 bits and more: after both have been made of the result's type.
absl::Status quotients(const CallArguments& call) {
  const c10::IValue* mode = call.find("rounding_mode");
  if (mode == nullptr || !mode->isString() || mode->toStringRef() != "trunc") return absl::OkStatus();
  const auto operand = [&](absl::string_view name) {
    const c10::IValue* given = call.find(name);
    if (given == nullptr || given->isNone()) return at::Tensor();
    return given->isTensor() ? given->toTensor() : c10::scalar_to_tensor(given->toScalar());
  };
  const at::Tensor self = operand("self");
  const at::Tensor other = operand("other");
  if (!self.defined() || !other.defined() || self.is_meta() || other.is_meta()) return absl::OkStatus();
  const bool number = !call.find("other")->isTensor();
  const at::ScalarType type =
      number ? at::result_type(self, call.find("other")->toScalar()) : at::result_type(self, other);
  if (type != at::kInt && type != at::kLong) return absl::OkStatus();
  const at::Tensor negative = other.to(type).eq(-1);
  if (!negative.any().item<bool>()) return absl::OkStatus();
  const std::int64_t least =
      type == at::kInt ? std::numeric_limits<std::int32_t>::min() : std::numeric_limits<std::int64_t>::min();
  if (!self.to(type).eq(least).logical_and(negative).any().item<bool>()) return absl::OkStatus();
  return call.refuse("self", absl::StrCat("holds ", least, " where it is divided by -1: no integer is the quotient"));
}

// Found with hostile values on LibTorch 2.11's CPU kernels; those that are not here check for themselves.
constexpr std::array<Row, 25> kChecks = {{
    {"aten::div", quotients},
    {"aten::div_", quotients},
    {"aten::divide", quotients},
    {"aten::divide_", quotients},
    {"aten::linalg_ldl_solve", pivotsOfLdl},
    {"aten::embedding_bag", offsetsOfBags},
    {"aten::_embedding_bag", offsetsOfBags},
    {"aten::_embedding_bag_forward_only", offsetsOfBags},
    {"aten::_embedding_bag_backward", bagsOfWeights},
    {"aten::_embedding_bag_dense_backward", bagsOfWeights},
    {"aten::_embedding_bag_sparse_backward", bagsOfWeights},
    {"aten::_embedding_bag_per_sample_weights_backward", bagsOfSamples},
    {"aten::embedding_backward", countedIndices},
    {"aten::embedding_dense_backward", countedIndices},
    {"aten::segment_reduce", segments},
    {"aten::_segment_reduce_backward", segments},
    {"aten::ctc_loss", classesOfCtc},
    {"aten::_ctc_loss", classesOfCtc},
    {"aten::_ctc_loss_backward", gradientOfCtc},
    {"aten::nll_loss_backward", classes},
    {"aten::nll_loss2d_backward", classesOfImages},
    {"aten::max_pool2d_with_indices_backward", places2d},
    {"aten::adaptive_max_pool2d_backward", places2d},
    {"aten::max_pool3d_with_indices_backward", places3d},
    {"aten::adaptive_max_pool3d_backward", places3d},
}};

}  // namespace

ArgumentCheck indexCheckOf(absl::string_view name) {
  const auto* row = std::find_if(kChecks.begin(), kChecks.end(), [&](const Row& r) { return r.name == name; });
  if (row == kChecks.end()) return nullptr;
  return row->check;
}

}  // namespace dtorch
