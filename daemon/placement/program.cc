#include "daemon/placement/program.h"

#include <algorithm>
#include <iterator>

#include "daemon/placement/factors.h"

namespace dtorch {

Placement ProgramTensor::placement(int factor, bool combined) const {
  const auto dim = std::find(dims.begin(), dims.end(), factor);
  if (factor >= 0 && dim != dims.end()) return Placement::shard(static_cast<int>(dim - dims.begin()));
  return combined && !partial.empty() ? Placement::partial(partial[0]) : Placement::replicate();
}

DType computeType(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16 ? DType::kFloat32 : dtype;
}

ProgramBuilder::ProgramBuilder(absl::Span<const TensorMeta* const> inputs, const std::vector<std::vector<int>>& dims) {
  for (std::size_t i = 0; i < inputs.size(); ++i) program_.tensors.push_back({*inputs[i], dims[i], {}});
}

std::uint32_t ProgramBuilder::run(std::string op, std::vector<Value> arguments, ProgramTensor result,
                                  std::vector<ProgramStep::LocalNumber> localNumbers) {
  std::vector<ProgramTensor> results;
  results.push_back(std::move(result));
  return runAll(std::move(op), std::move(arguments), std::move(results), std::move(localNumbers));
}

std::uint32_t ProgramBuilder::runAll(std::string op, std::vector<Value> arguments, std::vector<ProgramTensor> results,
                                     std::vector<ProgramStep::LocalNumber> localNumbers) {
  const auto first = static_cast<std::uint32_t>(program_.tensors.size());
  program_.steps.push_back({std::move(op), Arguments{std::move(arguments), {}}, std::move(localNumbers),
                            static_cast<std::uint32_t>(results.size())});
  std::move(results.begin(), results.end(), std::back_inserter(program_.tensors));
  return first;
}

std::uint32_t ProgramBuilder::factory(std::string op, ProgramTensor result) {
  Arguments arguments{{result.meta.shape}, {{"dtype", result.meta.dtype}}};
  const std::uint32_t made = run(std::move(op), {}, std::move(result));
  program_.steps.back().arguments = std::move(arguments);
  return made;
}

std::uint32_t ProgramBuilder::map(std::string op, std::uint32_t number, std::vector<Value> others) {
  ProgramTensor result = program_.tensors[number];
  others.insert(others.begin(), tensor(number));
  return run(std::move(op), std::move(others), std::move(result));
}

std::uint32_t ProgramBuilder::cast(std::uint32_t number, DType dtype) {
  if (program_.tensors[number].meta.dtype == dtype) return number;
  ProgramTensor result = program_.tensors[number];
  result.meta.dtype = dtype;
  return run("aten::to.dtype", {tensor(number), dtype}, std::move(result));
}

std::uint32_t ProgramBuilder::reduced(std::uint32_t number) {
  ProgramTensor result = program_.tensors[number];
  result.partial.clear();
  return run("", {tensor(number)}, std::move(result));
}

std::uint32_t ProgramBuilder::gathered(std::uint32_t number, std::size_t dim) {
  ProgramTensor result = program_.tensors[number];
  result.dims[dim] = -1;
  return run("", {tensor(number)}, std::move(result));
}

std::uint32_t ProgramBuilder::placed(std::uint32_t number, std::vector<int> dims) {
  ProgramTensor result = program_.tensors[number];
  result.dims = std::move(dims);
  return run("", {tensor(number)}, std::move(result));
}

std::uint32_t ProgramBuilder::softmax(std::uint32_t number, int dim, bool log) {
  const auto along = static_cast<std::size_t>(dim);
  const std::vector<std::int64_t> dims = {dim};
  const ProgramTensor whole = program_.tensors[number];
  const auto reducedBy = [&](ReduceOp op) {
    ProgramTensor result = whole;
    result.meta.shape[along] = 1;
    result.meta.strides = contiguousStrides(result.meta.shape);
    result.dims[along] = Factors::kWhole;
    result.partial = {op};
    return result;
  };
  const std::uint32_t greatest = reduced(run("aten::amax", {tensor(number), dims, true}, reducedBy(ReduceOp::kMax)));
  const std::uint32_t apart = map("aten::sub.Tensor", number, {tensor(greatest)});
  const std::uint32_t powers = map("aten::exp", apart);
  const std::uint32_t sum =
      reduced(run("aten::sum.dim_IntList", {tensor(powers), dims, true}, reducedBy(ReduceOp::kSum)));
  return log ? map("aten::sub.Tensor", apart, {tensor(map("aten::log", sum))})
             : map("aten::div.Tensor", powers, {tensor(sum)});
}

ProgramBuilder::LocalIndices ProgramBuilder::localIndices(std::uint32_t indices, std::uint32_t of, int dim) {
  const ProgramTensor local = program_.tensors[indices];
  ProgramTensor mask = local;
  mask.meta.dtype = DType::kBool;
  const std::uint32_t first =
      runAll("dtorch::local_indices",
             {tensor(indices), std::int64_t{0}, std::int64_t{0},
              program_.tensors[of].meta.shape[static_cast<std::size_t>(dim)]},
             {local, mask}, {{1, of, dim, LocalRange::Part::kOffset}, {2, of, dim, LocalRange::Part::kLength}});
  return {first, first + 1};
}

Program ProgramBuilder::finish(std::vector<std::uint32_t> outputs) {
  program_.outputs = std::move(outputs);
  return std::move(program_);
}

}  // namespace dtorch
