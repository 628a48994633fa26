#include "worker/task.h"

#include <algorithm>

namespace dtorch {

bool isBrief(const Task& task) {
  const bool brief = task.plan == nullptr ? task.brief : task.plan->brief;
  return brief && std::all_of(task.operands.begin(), task.operands.end(), [](const OperandRef& operand) {
           return operand->bytes.load(std::memory_order_relaxed) <= kBriefBytes;
         });
}

}  // namespace dtorch
