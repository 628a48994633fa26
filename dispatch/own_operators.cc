#include "dispatch/own_operators.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

#include "dispatch/composed_operators.h"

namespace dtorch {
namespace {

at::Generator generator() { return at::detail::getDefaultCPUGenerator(); }

void manualSeed(std::int64_t seed) { generator().set_current_seed(static_cast<std::uint64_t>(seed)); }

at::Tensor rngState() { return generator().get_state(); }

void setRngState(const at::Tensor& state) { generator().set_state(state); }

// Indices of a dimension of `size`, as indices of the `length` of it that begin at `offset`; and which of them lie
// elsewhere.
std::tuple<at::Tensor, at::Tensor> localIndices(const at::Tensor& indices, std::int64_t offset, std::int64_t length,
                                                std::int64_t size) {
  TORCH_CHECK_INDEX(!indices.lt(0).logical_or_(indices.ge(size)).any().item<bool>(), "index out of range: there are ",
                    size, " rows");
  const at::Tensor local = indices.sub(offset);
  return {local, local.lt(0).logical_or_(local.ge(length))};
}

// Rows of `self` along `dim` by indices of any shape, which takes the place of the dimension; zeros where `elsewhere`.
at::Tensor rowsOrZeros(const at::Tensor& self, std::int64_t dim, const at::Tensor& indices,
                       const at::Tensor& elsewhere) {
  std::vector<std::int64_t> shape(self.sizes().begin(), self.sizes().begin() + dim);
  shape.insert(shape.end(), indices.sizes().begin(), indices.sizes().end());
  shape.insert(shape.end(), self.sizes().begin() + dim + 1, self.sizes().end());
  if (self.size(dim) == 0) return at::zeros(shape, self.options());
  const at::Tensor flat = indices.masked_fill(elsewhere, 0).reshape({-1});
  std::vector<std::int64_t> along(static_cast<std::size_t>(self.dim()), 1);
  along[static_cast<std::size_t>(dim)] = flat.numel();
  return self.index_select(dim, flat).masked_fill_(elsewhere.reshape(along), 0).reshape(shape);
}

// One entry of `self` along `dim` for each index, the dimension gone; zeros where `elsewhere`.
at::Tensor entriesOrZeros(const at::Tensor& self, std::int64_t dim, const at::Tensor& indices,
                          const at::Tensor& elsewhere) {
  if (self.size(dim) == 0) return at::zeros(indices.sizes(), self.options());
  const at::Tensor within = indices.masked_fill(elsewhere, 0).unsqueeze(dim);
  return self.gather(dim, within).squeeze(dim).masked_fill_(elsewhere, 0);
}

thread_local OperatorHost* currentHost = nullptr;

at::Tensor memoryStats() {
  std::optional<MemoryStatistics> statistics = MemoryStatistics();
  if (currentHost != nullptr) statistics = currentHost->memoryStatistics();
  TORCH_CHECK(statistics,
              "worker threads share the daemon's memory, which is not counted: set workers.mode to process");
  std::vector<std::int64_t> row;
  for (const auto column : kMemoryColumns) row.push_back((*statistics).*column);
  return at::tensor(row, at::kLong).unsqueeze(0);
}

void resetPeakMemory() {
  if (currentHost != nullptr) currentHost->resetPeakMemory();
}

void emptyCache() {
  if (currentHost != nullptr) currentHost->releaseCachedMemory();
}

void rangePush(c10::string_view name) {
  if (currentHost == nullptr) return;
  TORCH_CHECK(currentHost->pushRange(std::string(name)),
              "too many ranges are open in this session: range_pop ends one");
}

void rangePop() {
  if (currentHost == nullptr) return;
  TORCH_CHECK(currentHost->popRange(), "no range is open in this session: range_push begins one");
}

void mark(c10::string_view name) {
  if (currentHost != nullptr) currentHost->mark(std::string(name));
}

}  // namespace

void registerOwnOperators() { registerComposedOperators(); }  // the library below is linked with it

bool tellsOfItsRank(const std::string& name) { return name == "dtorch::memory_stats"; }

OperatorHostScope::OperatorHostScope(OperatorHost& host) { currentHost = &host; }
OperatorHostScope::~OperatorHostScope() { currentHost = nullptr; }

TORCH_LIBRARY(dtorch, library) {
  const std::vector<at::Tag> random = {at::Tag::nondeterministic_seeded, at::Tag::data_dependent_output};
  library.def("manual_seed(int seed) -> ()", random);
  library.def("get_rng_state() -> Tensor", random);
  library.def("set_rng_state(Tensor state) -> ()", random);
  library.def("local_indices(Tensor indices, int offset, int length, int size) -> (Tensor, Tensor)");
  library.def("rows_or_zeros(Tensor self, int dim, Tensor indices, Tensor elsewhere) -> Tensor");
  library.def("entries_or_zeros(Tensor self, int dim, Tensor indices, Tensor elsewhere) -> Tensor");
  library.impl("entries_or_zeros", c10::DispatchKey::CPU, TORCH_FN(entriesOrZeros));
  library.impl("local_indices", c10::DispatchKey::CPU, TORCH_FN(localIndices));
  library.impl("rows_or_zeros", c10::DispatchKey::CPU, TORCH_FN(rowsOrZeros));
  library.impl("manual_seed", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(manualSeed));
  library.impl("get_rng_state", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(rngState));
  library.impl("set_rng_state", c10::DispatchKey::CPU, TORCH_FN(setRngState));

  library.def("memory_stats() -> Tensor", {at::Tag::data_dependent_output});
  library.def("reset_peak_memory() -> ()");
  library.def("empty_cache() -> ()");
  library.def("range_push(str name) -> ()");
  library.def("range_pop() -> ()");
  library.def("mark(str name) -> ()");
  library.impl("memory_stats", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(memoryStats));
  library.impl("reset_peak_memory", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(resetPeakMemory));
  library.impl("empty_cache", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(emptyCache));
  library.impl("range_push", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(rangePush));
  library.impl("range_pop", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(rangePop));
  library.impl("mark", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(mark));
}

}  // namespace dtorch
