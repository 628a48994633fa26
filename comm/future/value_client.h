#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "comm/future/local_socket.h"
#include "comm/future/snapshot.h"
#include "comm/future/value_protocol.h"

namespace dtorch {

/// Asks a ValueServer of this host for values.
///
/// Thread: safe. Owns: one thread, "dtorch-values", which runs the callbacks.
class ValueClient {
 public:
  using Callback = std::function<void(SnapshotOr)>;

  /// Large values are mapped privately: to write to one changes nobody else's. With `mapped` their memory is shared,
  /// and stays mapped there for the next value in it: for a server that uses segments again. UNAVAILABLE: nobody
  /// listens at `path`.
  static absl::StatusOr<std::unique_ptr<ValueClient>> connect(const std::string& path,
                                                              std::shared_ptr<MappedSegments> mapped = nullptr);
  /// Callbacks that still wait get CANCELLED.
  ~ValueClient();

  /// `done` is called once: with the value, with the error that it was resolved with, or with UNAVAILABLE naming the
  /// process that was to compute it, when that ends. It must not block, nor destroy this.
  void fetch(std::uint64_t id, Callback done);
  /// The server is gone: what is fetched now fails.
  bool ended();

 private:
  ValueClient(LocalSocket socket, int wake, std::shared_ptr<MappedSegments> mapped);
  void loop();
  void wakeLoop() const;
  void sendLocked();
  void endAll(const absl::Status& why);

  const LocalSocket socket_;
  const int wake_;
  const std::shared_ptr<MappedSegments> mapped_;

  std::mutex mutex_;
  std::unordered_map<std::uint64_t, Callback> waiting_;
  /// Requests that the socket had no room for, oldest first.
  std::deque<ValueRequest> unsent_;
  std::uint64_t requests_ = 0;
  absl::Status ended_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace dtorch
