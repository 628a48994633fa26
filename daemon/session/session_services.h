#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/container/node_hash_map.h"
#include "absl/random/random.h"
#include "core/device_mesh.h"
#include "daemon/executor/executor.h"
#include "daemon/graph/logical_graph.h"
#include "daemon/graph/tensor_layout.h"
#include "daemon/placement/operator_template.h"
#include "daemon/placement/planner.h"
#include "daemon/placement/rule_book.h"
#include "daemon/session/future_table.h"
#include "daemon/session/tensor_table.h"
#include "daemon/session/workers_health.h"
#include "dispatch/operator_policy.h"

namespace dtorch {

/// A call that shall be done by some time. Number 0: one that waits for its turn.
struct CallDeadline {
  SessionId session = 0;
  OperatorNumber number = 0;
  std::uint32_t timeoutMs = 0;
  std::uint32_t site = 0;
};
using CallDeadlines = std::multimap<std::chrono::steady_clock::time_point, CallDeadline>;

/// Counts and tables shared by all sessions of a daemon. Thread: the controller loop's.
struct SessionServices {
  LayoutTable* layouts = nullptr;
  Planner* planner = nullptr;
  Executor* executor = nullptr;
  FutureTable* futures = nullptr;
  absl::BitGen random;
  int worldSize = 0;
  SessionLimits limits;
  TensorTotals totals;
  OperatorPolicy policy;
  RuleBook libraryRules;
  v1::RuleList ruledOperators;  // by the tables and these; empty: nobody has asked yet
  std::size_t maxRules = 0;     // session.max_rules
  LogicalGraph graph;
  CallDeadlines deadlines;
  std::size_t sweepDeadlinesAt = 4096;  // so many may be of calls that are done
  WorkersHealth health;
  bool validate = false;     // session.validate
  std::uint64_t failed = 0;  // operators, over all sessions
  absl::node_hash_map<DeviceMesh, PlacedMesh> meshes;
  /// By name, arguments and mesh, serialised: sessions that call the same share plans.
  absl::flat_hash_map<std::string, std::shared_ptr<const OperatorTemplate>> templates;
  std::size_t templateBytes = 0;  // of the keys, on the wire; arguments take up to 32 times as much in memory
};

}  // namespace dtorch
