#include "daemon/placement/factors.h"

#include <algorithm>
#include <numeric>

namespace dtorch {

std::vector<int> Factors::all() const {
  std::vector<int> factors(static_cast<std::size_t>(count));
  std::iota(factors.begin(), factors.end(), 0);
  return factors;
}

std::vector<int> Factors::addAll(std::size_t dims) {
  std::vector<int> added(dims);
  for (int& factor : added) factor = add();
  return added;
}

void Factors::keepWhole(int factor) {
  for (auto* tensors : {&inputs, &outputs}) {
    for (std::vector<int>& dims : *tensors) std::replace(dims.begin(), dims.end(), factor, kWhole);
  }
}

}  // namespace dtorch
