#pragma once
#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/container/node_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/ids.h"

namespace dtorch {

/// An operator that has been published and not been done by all its ranks.
struct GraphOperator {
  OperatorNumber number = 0;
  SessionId session = 0;
  GroupId group = 0;
  absl::string_view name;
  std::uint32_t site = 0;  // of the session's
  std::chrono::steady_clock::time_point published;
  absl::InlinedVector<OperandId, 4> inputs;
  absl::InlinedVector<OperandId, 1> written;  // of the inputs
  OperandId firstOutput = 0;
  std::uint32_t outputs = 0;
};

/// The window of the program that the workers are at: operators in flight, in their total order, and the operands that
/// they read and make. What has been done leaves it; operands that are held by sessions are in their TensorTables.
///
/// Thread: the controller loop's.
class LogicalGraph {
 public:
  void add(GraphOperator added, absl::string_view name);
  /// All operators of `group` with smaller numbers have been done.
  void retire(GroupId group, OperatorNumber oldest);
  /// Likewise, of every group.
  void retireAll(absl::FunctionRef<OperatorNumber(GroupId)> oldestOf);
  std::size_t size() const { return size_; }
  /// What the session has in flight, from operator `first` on, in order.
  std::vector<const GraphOperator*> ofSession(SessionId session, OperatorNumber first) const;
  /// Null: not in flight.
  const GraphOperator* find(OperatorNumber number) const;
  /// The oldest operators, up to `limit`, in their order.
  std::vector<const GraphOperator*> oldest(std::size_t limit) const;

 private:
  absl::node_hash_set<std::string> names_;
  absl::flat_hash_map<GroupId, std::deque<GraphOperator>> operators_;
  std::size_t size_ = 0;
};

}  // namespace dtorch
