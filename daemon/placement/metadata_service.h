#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
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
  std::optional<MetadataAnswer> ask(MetadataQuestion question, absl::Duration patience);

 private:
  void run();

  const std::function<void(std::uint64_t, MetadataAnswer)> onAnswer_;
  MetadataProcess process_;
  absl::Mutex mutex_;
  std::deque<MetadataQuestion> questions_ ABSL_GUARDED_BY(mutex_);
  std::map<std::uint64_t, MetadataAnswer> answers_ ABSL_GUARDED_BY(mutex_);  // that are waited for
  absl::flat_hash_set<std::uint64_t> late_ ABSL_GUARDED_BY(mutex_);          // questions that are not
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace dtorch
