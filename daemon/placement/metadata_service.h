#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "core/tensor_meta.h"
#include "core/value.h"
#include "daemon/placement/metadata_process.h"

namespace dtorch {

/// What an operator returns is asked here; the answer goes to the one who gave the number.
struct MetadataQuestion {
  std::uint64_t number = 0;
  std::string op;
  std::vector<Value> arguments;
  std::vector<TensorMeta> inputs;
};

/// Asks the metadata process on a thread of its own: nobody else waits while a Meta kernel takes its time.
///
/// Thread: ask() is safe; onAnswer is called on the service's thread, in the order of the questions. Owns: the thread.
class MetadataService {
 public:
  /// The process loads `libraries` (see MetadataProcess).
  MetadataService(std::vector<std::string> libraries, std::function<void(std::uint64_t, MetadataAnswer)> onAnswer);
  /// Questions without an answer get none.
  ~MetadataService();
  /// Waits for the answer, but not longer than `patience`; nullopt: onAnswer gets it later.
  std::optional<MetadataAnswer> ask(MetadataQuestion question, std::chrono::milliseconds patience);

 private:
  void run();

  const std::function<void(std::uint64_t, MetadataAnswer)> onAnswer_;
  MetadataProcess process_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable asked_;
  std::condition_variable answered_;
  std::deque<MetadataQuestion> questions_;
  std::map<std::uint64_t, MetadataAnswer> answers_;  // that are waited for
  absl::flat_hash_set<std::uint64_t> late_;          // questions that are not
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace dtorch
