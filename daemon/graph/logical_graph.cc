#include "daemon/graph/logical_graph.h"

#include <algorithm>
#include <utility>

namespace dtorch {

void LogicalGraph::add(GraphOperator added, absl::string_view name) {
  const auto known = names_.find(name);
  added.name = known != names_.end() ? *known : *names_.emplace(name).first;
  operators_[added.group].push_back(std::move(added));
  ++size_;
}

void LogicalGraph::retire(GroupId group, OperatorNumber oldest) {
  const auto it = operators_.find(group);
  if (it == operators_.end()) return;
  std::deque<GraphOperator>& window = it->second;
  while (!window.empty() && window.front().number < oldest) {
    window.pop_front();
    --size_;
  }
}

std::vector<const GraphOperator*> LogicalGraph::ofSession(SessionId session, OperatorNumber first) const {
  std::vector<const GraphOperator*> found;
  for (const auto& [group, window] : operators_) {
    for (const GraphOperator& op : window) {
      if (op.session == session && op.number >= first) found.push_back(&op);
    }
  }
  std::sort(found.begin(), found.end(),
            [](const GraphOperator* a, const GraphOperator* b) { return a->number < b->number; });
  return found;
}

const GraphOperator* LogicalGraph::find(OperatorNumber number) const {
  for (const auto& [group, window] : operators_) {
    const auto it = std::lower_bound(window.begin(), window.end(), number,
                                     [](const GraphOperator& op, OperatorNumber wanted) { return op.number < wanted; });
    if (it != window.end() && it->number == number) return &*it;
  }
  return nullptr;
}

void LogicalGraph::retireAll(absl::FunctionRef<OperatorNumber(GroupId)> oldestOf) {
  for (auto it = operators_.begin(); it != operators_.end();) {
    const auto current = it++;
    retire(current->first, oldestOf(current->first));
    if (current->second.empty()) operators_.erase(current);
  }
}

std::vector<const GraphOperator*> LogicalGraph::oldest(std::size_t limit) const {
  std::vector<const GraphOperator*> all;
  for (const auto& [group, window] : operators_) {
    for (std::size_t i = 0; i < std::min(limit, window.size()); ++i) all.push_back(&window[i]);
  }
  std::sort(all.begin(), all.end(),
            [](const GraphOperator* a, const GraphOperator* b) { return a->number < b->number; });
  if (all.size() > limit) all.resize(limit);
  return all;
}

}  // namespace dtorch
