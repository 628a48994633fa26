#pragma once
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "daemon/rpc/session_stream.h"

namespace dtorch {

/// The client streams that gRPC has not done with yet. Owns: them. Thread: safe.
class OpenStreams {
 public:
  /// A new stream, for gRPC; after close() one that ends at once.
  SessionStream* add(SessionListener* listener, PeerCredentials peer, std::size_t maxMessageBytes,
                     SessionStream::Connection connection);
  /// Ends the streams whose clients have not taken for so long what is being written to them.
  void cutOffUnread(std::chrono::milliseconds limit);
  /// Ends all streams, and those that come later, with `status`, after what is queued for them has been sent.
  void close(const absl::Status& status);
  /// True when the last one has ended before the deadline.
  bool waitUntilEmpty(std::chrono::steady_clock::time_point deadline);

 private:
  void remove(SessionStream* stream);
  std::vector<std::shared_ptr<SessionStream>> allLocked() const;

  std::mutex mutex_;  // guards what follows
  std::condition_variable empty_;
  std::unordered_map<SessionStream*, std::shared_ptr<SessionStream>> streams_;
  absl::Status closed_;  // not OK: close() was called
};

}  // namespace dtorch
