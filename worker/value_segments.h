#pragma once
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "comm/future/value_server.h"
#include "core/ids.h"
#include "core/tensor_meta.h"
#include "shm/mapped_segments.h"
#include "shm/segment_pool.h"

namespace dtorch {

/// Large values in shared memory: on their way out, until the daemon or a client of this host has done with them, and
/// on their way in, where such a client has put them. Only values of the same session are put into memory that one was
/// in.
///
/// Thread: safe.
class ValueSegments {
 public:
  /// `server` gives segments to clients of this host; null: they get the bytes from the daemon.
  explicit ValueSegments(std::unique_ptr<ValueServer> server) : server_(std::move(server)) {}

  /// Memory for a value of that size at least. RESOURCE_EXHAUSTED.
  absl::StatusOr<std::shared_ptr<Segment>> take(SessionId session, std::size_t bytes) {
    return pool_.take(session, bytes);
  }
  /// The same, with a copy of these bytes in it.
  absl::StatusOr<std::shared_ptr<Segment>> takeCopyOf(SessionId session, const std::byte* data, std::size_t bytes) {
    return pool_.takeCopyOf(session, data, bytes);
  }
  /// Holds the value of `future`, which take() gave the memory for, and tells where it can be had. `holder`: keeps
  /// memory that take() did not give.
  std::optional<ValueTicket> keep(FutureId future, SessionId session, const TensorMeta& meta,
                                  std::shared_ptr<Segment> segment, std::shared_ptr<const void> holder = nullptr);
  /// Nobody uses it any more.
  void drop(FutureId future);
  /// A client's segment, kept mapped for what its session puts into it next. NOT_FOUND: it is gone.
  absl::StatusOr<std::shared_ptr<Segment>> map(SessionId session, const SegmentRef& ref);
  /// The session has ended: its memory is freed, lent tensors' too.
  void forget(SessionId session);

 private:
  static constexpr std::size_t kIdleBytes = 256 << 20;
  static constexpr std::size_t kMappings = 16;  // of a session's client
  struct Kept {
    std::optional<SessionId> session;  // nullopt: it has ended
    std::shared_ptr<Segment> segment;
    std::uint64_t ticket = 0;
    std::shared_ptr<const void> holder;
  };

  const std::unique_ptr<ValueServer> server_;
  SegmentPool pool_{kIdleBytes};
  absl::Mutex mutex_;
  absl::flat_hash_map<FutureId, Kept> kept_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<SessionId, std::shared_ptr<MappedSegments>> mapped_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace dtorch
