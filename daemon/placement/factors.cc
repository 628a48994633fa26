#include "daemon/placement/factors.h"

namespace dtorch {

std::vector<int> Factors::addAll(std::size_t dims) {
  std::vector<int> added(dims);
  for (int& factor : added) factor = add();
  return added;
}

}  // namespace dtorch
