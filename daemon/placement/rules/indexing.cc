#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "daemon/placement/notation.h"
#include "daemon/placement/program.h"
#include "daemon/placement/rule.h"

namespace dtorch {
namespace {

// Rows of `self` along "dim" by a vector of indices. A split `dim`: each rank gives the rows that it has and zeros for
// the others, a Partial(sum).
absl::StatusOr<Factors> indexSelectFactors(const RuleCall& call, absl::string_view) {
  const std::size_t rank = call.inputs[0]->shape.size();
  absl::StatusOr<int> dim = call.dimension("dim", rank);
  if (!dim.ok()) return dim.status();
  if (call.inputs[1]->shape.size() != 1) return absl::UnimplementedError("its index is no vector");
  const auto along = static_cast<std::size_t>(*dim);
  Factors factors;
  const std::vector<int> self = factors.addAll(rank);
  const int selected = factors.add();
  std::vector<int> output = self;
  output[along] = selected;
  factors.inputs = {self, {selected}};
  factors.outputs = {output};
  factors.moved = {{0}};
  factors.combined.push_back(
      {{self[along]},
       [factors, along](const RuleCall& planned, std::int64_t) -> absl::StatusOr<Program> {
         ProgramBuilder builder(absl::MakeConstSpan(planned.inputs), factors.inputs);
         const auto tensor = ProgramBuilder::tensor;
         const ProgramBuilder::LocalIndices local = builder.localIndices(1, 0, static_cast<int>(along));
         ProgramTensor result{*planned.outputs[0], factors.outputs[0], {ReduceOp::kSum}};
         const std::uint32_t rows = builder.run(
             "dtorch::rows_or_zeros",
             {tensor(0), static_cast<std::int64_t>(along), tensor(local.indices), tensor(local.elsewhere)}, result);
         return builder.finish({rows});
       },
       {ReduceOp::kSum}});
  return factors;
}

// A table's rows by indices of any shape; the vocabulary may be split as above.
absl::StatusOr<Factors> embeddingFactors(const RuleCall& call, absl::string_view) {
  const std::size_t rank = call.inputs[1]->shape.size();
  if (call.inputs[0]->shape.size() != 2) return absl::UnimplementedError("its weight is no table");
  Factors factors;
  const int row = factors.add();
  const int feature = factors.add();
  const std::vector<int> indices = factors.addAll(rank);
  std::vector<int> output = indices;
  output.push_back(feature);
  factors.inputs = {{row, feature}, indices};
  factors.outputs = {output};
  factors.moved = {{0}};
  factors.combined.push_back({{row},
                              [factors](const RuleCall& planned, std::int64_t) -> absl::StatusOr<Program> {
                                ProgramBuilder builder(absl::MakeConstSpan(planned.inputs), factors.inputs);
                                const auto tensor = ProgramBuilder::tensor;
                                const ProgramBuilder::LocalIndices local = builder.localIndices(1, 0, 0);
                                ProgramTensor result{*planned.outputs[0], factors.outputs[0], {ReduceOp::kSum}};
                                const std::uint32_t rows = builder.run(
                                    "dtorch::rows_or_zeros",
                                    {tensor(0), std::int64_t{0}, tensor(local.indices), tensor(local.elsewhere)},
                                    result);
                                return builder.finish({rows});
                              },
                              {ReduceOp::kSum}});
  return factors;
}

// Each index adds to the gradient of its row.
absl::StatusOr<Factors> embeddingBackwardFactors(const RuleCall& call, absl::string_view) {
  if (call.flag("scale_grad_by_freq")) return absl::UnimplementedError("it counts how often each index occurs");
  if (call.flag("sparse")) return absl::UnimplementedError("its result is sparse");
  Factors factors;
  const std::vector<int> indices = factors.addAll(call.inputs[1]->shape.size());
  const int feature = factors.add();
  std::vector<int> gradient = indices;
  gradient.push_back(feature);
  factors.inputs = {gradient, indices};
  factors.outputs = {{Factors::kWhole, feature}};
  for (const int factor : indices) factors.reduced.push_back({factor, ReduceOp::kSum});
  factors.linear = {{0}};
  return factors;
}

// self, index and result agree in all dimensions but "dim"; where index is shorter, the dimension stays whole.
absl::StatusOr<Factors> gatherFactors(const RuleCall& call, absl::string_view detail) {
  const bool backward = detail == "backward";
  const std::size_t selfAt = backward ? 1 : 0;
  const std::size_t indexAt = backward ? 2 : 1;
  const std::vector<std::int64_t>& self = call.inputs[selfAt]->shape;
  const std::vector<std::int64_t>& index = call.inputs[indexAt]->shape;
  absl::StatusOr<int> dim = call.dimension("dim", self.size());
  if (!dim.ok()) return dim.status();
  if (self.size() != index.size()) return absl::UnimplementedError("its index has other dimensions");
  Factors factors;
  std::vector<int> ofSelf = factors.addAll(self.size());
  for (std::size_t d = 0; d < self.size(); ++d) {
    if (static_cast<int>(d) == *dim || self[d] != index[d]) ofSelf[d] = Factors::kWhole;
  }
  std::vector<int> ofIndex = ofSelf;
  if (!self.empty() && !backward) ofIndex[static_cast<std::size_t>(*dim)] = factors.add();
  if (backward) {
    factors.inputs = {ofIndex, ofSelf, ofIndex};
    factors.outputs = {ofSelf};
    factors.linear = {{0}};
    return factors;
  }
  factors.inputs = {ofSelf, ofIndex};
  factors.outputs = {ofIndex};
  factors.moved = {{0}};
  return factors;
}

// self, index and, unless it is a number, src agree in all dimensions but "dim". Detail: "moved" or "linear": how self
// and src may be Partial together.
absl::StatusOr<Factors> scatterFactors(const RuleCall& call, absl::string_view detail) {
  const std::vector<std::int64_t>& self = call.inputs[0]->shape;
  absl::StatusOr<int> dim = call.dimension("dim", self.size());
  if (!dim.ok()) return dim.status();
  Factors factors;
  std::vector<int> of = factors.addAll(self.size());
  for (const TensorMeta* input : call.inputs) {
    if (input->shape.size() != self.size()) return absl::UnimplementedError("its tensors differ in rank");
    for (std::size_t d = 0; d < self.size(); ++d) {
      if (static_cast<int>(d) == *dim || input->shape[d] != self[d]) of[d] = Factors::kWhole;
    }
  }
  factors.inputs.assign(call.inputs.size(), of);
  factors.outputs = {of};
  const bool plain = call.argument("reduce") == nullptr || call.argument("reduce")->isNone();
  if (call.inputs.size() == 3 && detail == "moved" && plain) factors.moved = {{0, 2}};
  if (call.inputs.size() == 3 && detail == "linear") factors.linear = {{0, 2}};
  return factors;
}

// Whole rows along "dim", by a vector of indices that goes with the rows of `source`. Detail "add": the indices may be
// split, each rank adding its rows.
absl::StatusOr<Factors> indexRowsFactors(const RuleCall& call, absl::string_view detail) {
  const std::vector<std::int64_t>& self = call.inputs[0]->shape;
  absl::StatusOr<int> dim = call.dimension("dim", self.size());
  if (!dim.ok()) return dim.status();
  const Value* reduce = call.argument("reduce");
  const auto* reduction = reduce == nullptr ? nullptr : reduce->as<std::string>();
  if (reduction != nullptr && *reduction == "prod") {
    return absl::UnimplementedError("PyTorch's kernel of this reduction fails on slices of one element");
  }
  Factors factors;
  std::vector<int> of = factors.addAll(self.size());
  of[static_cast<std::size_t>(*dim)] = Factors::kWhole;
  factors.outputs = {of};
  const bool adds = detail == "add";
  const int row = adds ? factors.add() : Factors::kWhole;
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    std::vector<int> dims = of;
    if (i == 1) {
      dims.assign(call.inputs[i]->shape.size(), row);
    } else if (i == 2) {
      if (call.inputs[i]->shape.empty()) {
        dims.clear();  // index_fill's value
      } else {
        dims[static_cast<std::size_t>(*dim)] = row;
      }
    }
    factors.inputs.push_back(std::move(dims));
  }
  if (adds) {
    factors.reduced = {{row, ReduceOp::kSum}};
    factors.addends = {0};
    factors.linear = {{0, 2}};
  }
  return factors;
}

// How x[i, :, j] lays out its result: which dimensions are indexed, where the indices' own dimensions go.
struct IndexLayout {
  std::vector<std::size_t> indexed;  // dimensions of self
  std::vector<std::int64_t> shape;   // of the indices together
  std::size_t at = 0;                // where that stands in the result
};

absl::StatusOr<IndexLayout> indexLayout(const RuleCall& call) {
  const Value* value = call.argument("indices");
  const std::optional<TensorListArg> list = value == nullptr ? std::nullopt : tensorListOf(*value);
  if (!list) return absl::UnimplementedError("no list of indices");
  IndexLayout layout;
  for (std::size_t d = 0; d < list->indices.size(); ++d) {
    if (!list->indices[d]) continue;
    const TensorMeta& index = *call.inputs[*list->indices[d]];
    if (index.dtype == DType::kBool || index.dtype == DType::kUInt8) {
      return absl::UnimplementedError("an index is a mask");
    }
    layout.indexed.push_back(d);
    const std::size_t rank = std::max(layout.shape.size(), index.shape.size());
    std::vector<std::int64_t> shape(rank, 1);
    for (const std::vector<std::int64_t>* part : {&std::as_const(layout.shape), &index.shape}) {
      for (std::size_t k = 0; k < part->size(); ++k) {
        std::int64_t& extent = shape[rank - part->size() + k];
        if (extent == 1) extent = (*part)[k];
      }
    }
    layout.shape = std::move(shape);
  }
  if (layout.indexed.empty()) return absl::UnimplementedError("no index");
  const bool adjacent = layout.indexed.back() - layout.indexed.front() + 1 == layout.indexed.size();
  layout.at = adjacent ? layout.indexed.front() : 0;
  return layout;
}

// The indices' factors and those of the dimensions that are not indexed.
absl::StatusOr<Factors> indexFactors(const RuleCall& call, absl::string_view detail) {
  absl::StatusOr<IndexLayout> layout = indexLayout(call);
  if (!layout.ok()) return layout.status();
  const bool puts = detail == "put";
  const std::size_t rank = call.inputs[0]->shape.size();
  Factors factors;
  std::vector<int> self = factors.addAll(rank);
  std::vector<int> rest;
  for (std::size_t d = 0; d < rank; ++d) {
    const bool indexed = std::find(layout->indexed.begin(), layout->indexed.end(), d) != layout->indexed.end();
    if (indexed) {
      self[d] = Factors::kWhole;
    } else {
      rest.push_back(self[d]);
    }
  }
  // Where values are put the order of the indices may matter, so that they are not split.
  std::vector<int> ofIndices =
      puts ? std::vector<int>(layout->shape.size(), Factors::kWhole) : factors.addAll(layout->shape.size());
  std::vector<int> result = rest;
  result.insert(result.begin() + static_cast<std::ptrdiff_t>(std::min(layout->at, rest.size())), ofIndices.begin(),
                ofIndices.end());
  const auto aligned = [](const std::vector<std::int64_t>& shape, const std::vector<int>& dims,
                          const std::vector<std::int64_t>& full) {
    std::vector<int> of;
    for (std::size_t k = 0; k < shape.size(); ++k) {
      const std::size_t d = dims.size() - shape.size() + k;
      of.push_back(shape[k] == full[d] ? dims[d] : Factors::kWhole);
    }
    return of;
  };
  factors.inputs.push_back(self);
  const int values = puts ? call.input("values") : -1;
  for (std::size_t i = 1; i < call.inputs.size(); ++i) {
    const std::vector<std::int64_t>& shape = call.inputs[i]->shape;
    if (static_cast<int>(i) != values) {
      factors.inputs.push_back(aligned(shape, ofIndices, layout->shape));
      continue;
    }
    // Values broadcast to what the indices select.
    std::vector<std::int64_t> selected;
    for (std::size_t d = 0; d < rank; ++d) {
      if (self[d] != Factors::kWhole) selected.push_back(call.inputs[0]->shape[d]);
    }
    selected.insert(selected.begin() + static_cast<std::ptrdiff_t>(std::min(layout->at, selected.size())),
                    layout->shape.begin(), layout->shape.end());
    if (shape.size() > result.size()) return absl::UnimplementedError("its values have more dimensions");
    factors.inputs.push_back(aligned(shape, result, selected));
  }
  if (puts) {
    factors.outputs = {self};
    if (call.flag("accumulate")) factors.linear = {{0, values}};
  } else {
    factors.outputs = {result};
    factors.moved = {{0}};
  }
  return factors;
}

absl::StatusOr<Factors> searchSortedFactors(const RuleCall& call, absl::string_view) {
  const bool vector = call.inputs[0]->shape.size() == 1;
  return notationFactors(call, vector ? "*, ..., * -> ..." : "... [n], ... m, ... [n] -> ... m");
}

constexpr std::array kRules = std::to_array<Rule>({
    {"aten::index_select", indexSelectFactors, ""},
    {"aten::embedding", embeddingFactors, ""},
    {"aten::embedding_dense_backward", embeddingBackwardFactors, ""},
    {"aten::embedding_backward", embeddingBackwardFactors, ""},
    {"aten::gather", gatherFactors, ""},
    {"aten::gather_backward", gatherFactors, "backward"},
    {"aten::take_along_dim", gatherFactors, ""},
    {"aten::scatter", scatterFactors, "moved"},
    {"aten::scatter_add", scatterFactors, "linear"},
    {"aten::scatter_reduce", scatterFactors, ""},
    {"aten::index_add", indexRowsFactors, "add"},
    {"aten::index_copy", indexRowsFactors, ""},
    {"aten::index_fill", indexRowsFactors, ""},
    {"aten::index_reduce", indexRowsFactors, ""},
    {"aten::index", indexFactors, ""},
    {"aten::_unsafe_index", indexFactors, ""},
    {"aten::index_put", indexFactors, "put"},
    {"aten::_unsafe_index_put", indexFactors, "put"},
    {"aten::_index_put_impl", indexFactors, "put"},
    {"aten::searchsorted", searchSortedFactors, ""},
    {"aten::take", notationFactors, "*, ... -> ...; moved 0"},
});

}  // namespace

absl::Span<const Rule> indexingRules() { return kRules; }

}  // namespace dtorch
