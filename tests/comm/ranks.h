#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/group/thread_group_manager.h"

namespace dtorch::testing {

/// What a test runs as each of its ranks.
struct RankContext {
  Rank rank = 0;
  int size = 0;
  ThreadGroupManager& manager;
  /// What the test passed. When it begins with "shared", processes keep large tensors in shared memory.
  std::string argument;
  /// Mismatches and errors; empty is success.
  std::string failures;

  std::vector<Rank> all() const;
  ThreadGroup& world();
  void check(bool condition, const std::string& what);
};

/// Threads of this process, a process for each rank, or processes of two ranks each (the last one may have one).
enum class Mode { kThreads, kProcesses, kMixed };
inline const char* name(Mode mode) {
  return mode == Mode::kThreads ? "threads" : mode == Mode::kProcesses ? "processes" : "threads of processes";
}

/// A body that can run in a process of its own is registered under a name, with a static object.
using RankBody = std::function<void(RankContext&)>;
struct RankRole {
  RankRole(const std::string& name, RankBody body);
};

struct RankOutcome {
  /// Exit status of its process as waitpid gives it; 0 for threads.
  int status = 0;
  /// Those of all ranks of its process.
  std::string failures;
};

/// Runs the role as `size` ranks that know each other, and returns what became of each, in order of ranks. Processes
/// are started from this test's own executable, and all reaped before it returns.
std::vector<RankOutcome> runRanks(Mode mode, int size, const std::string& role, const std::string& argument = "",
                                  std::chrono::milliseconds timeout = std::chrono::seconds(20));

/// runRanks, and a failed check for each rank that did not succeed.
void expectRanks(Mode mode, int size, const std::string& role, const std::string& argument = "");

}  // namespace dtorch::testing
