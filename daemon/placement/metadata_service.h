#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
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

/// Asks the metadata process on a thread of its own: nobody else waits while a Meta kernel runs.
///
/// Thread: ask() is safe; onAnswer is called on the service's thread, in the order of the questions. Owns: the thread.
class MetadataService {
 public:
  explicit MetadataService(std::function<void(std::uint64_t, MetadataAnswer)> onAnswer);
  /// Questions without an answer get none.
  ~MetadataService();
  void ask(MetadataQuestion question);

 private:
  void run();

  const std::function<void(std::uint64_t, MetadataAnswer)> onAnswer_;
  MetadataProcess process_;
  absl::Mutex mutex_;
  std::deque<MetadataQuestion> questions_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace dtorch
