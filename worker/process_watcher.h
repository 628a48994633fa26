#pragma once
#include <functional>
#include <thread>

#include "absl/status/statusor.h"

namespace dtorch {

/// Watches what concerns the process as a whole: SIGTERM and SIGINT, and whether the daemon lives.
///
/// Make it before any other thread, so that all of them inherit the blocked signals. Owns: its thread and descriptors.
class ProcessWatcher {
 public:
  /// `lifetimeFd`: the read end of a pipe whose write end only the daemon holds; when that closes, by kill -9 of the
  /// daemon too, this process and its process group (if it leads one) end at once. -1: none.
  explicit ProcessWatcher(int lifetimeFd);
  ProcessWatcher(const ProcessWatcher&) = delete;
  ProcessWatcher& operator=(const ProcessWatcher&) = delete;
  ~ProcessWatcher();

  /// Starts to watch; `onTerminate` is called, on the watcher's thread, for a signal, also one that came before.
  void start(std::function<void()> onTerminate);
  /// After it `onTerminate` is not called any more. Idempotent.
  void stop();

 private:
  void run();

  const int lifetimeFd_;
  const int signalFd_;
  const int stopFd_;
  std::function<void()> onTerminate_;
  std::thread thread_;
};

}  // namespace dtorch
