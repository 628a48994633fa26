#pragma once
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "client/cpp/host_tensor.h"
#include "client/cpp/mesh.h"
#include "core/ids.h"
#include "core/placement.h"
#include "core/tensor_meta.h"

namespace dtorch {
namespace v1 {
class FutureResult;
}
class SessionCore;

/// What describe() tells of a tensor.
struct TensorInfo {
  TensorMeta meta;  // global
  Placements placements;
  Mesh mesh;
};

/// What the daemon answered to a get, describe, synchronize, explain or list.
struct FutureReply {
  TensorInfo info;
  std::shared_ptr<std::byte[]> data;  // of a value
  std::string json;                   // of an explanation or a list

  explicit operator HostTensor() const { return HostTensor(info.meta, data); }
  explicit operator TensorInfo() const { return info; }
  explicit operator std::string() const { return json; }
};

/// The state that the copies of one Future share: unresolved, then resolved exactly once with a status and a reply.
/// Thread: safe; onResult by one thread at a time.
class FutureState {
 public:
  enum class Kind : std::uint8_t { kValue, kInfo, kDone, kJson };

  FutureState(std::shared_ptr<SessionCore> session, FutureId id, Kind kind);
  /// A future that has failed already.
  explicit FutureState(absl::Status error);
  FutureState(const FutureState&) = delete;
  FutureState& operator=(const FutureState&) = delete;
  /// Cancels the request if it is unresolved.
  ~FutureState();

  bool poll() const;
  void wait() const;
  bool waitUntil(std::chrono::steady_clock::time_point deadline) const;
  /// A descriptor that is readable from then on that the future is resolved, as long as this lives; -1: there is none.
  int event();
  /// Valid once resolved; never change again.
  const absl::Status& status() const;
  const FutureReply& reply() const { return reply_; }

  /// Takes the next message of the answer; true when that resolved the future.
  bool onResult(const v1::FutureResult& result, const Mesh& mesh);
  /// Takes the whole answer to a get.
  void onValue(TensorMeta meta, std::shared_ptr<std::byte[]> data);
  /// Does nothing once resolved.
  void resolve(absl::Status status);

 private:
  absl::Status assemble(const v1::FutureResult& result, const Mesh& mesh);
  bool resolved() const;
  /// In a forked child it is resolved, with an error unless the value was here before.
  bool isParents() const;

  const std::shared_ptr<SessionCore> session_;
  const FutureId id_;
  const Kind kind_;
  std::int64_t received_ = 0;  // bytes of the value; the reading thread's own
  bool started_ = false;       // likewise: the message with the metadata has come

  mutable std::mutex mutex_;
  mutable std::condition_variable resolvedChanged_;
  bool resolved_ = false;
  absl::Status status_;
  FutureReply reply_;
  int event_ = -1;  // an eventfd, once somebody wants one
};

}  // namespace dtorch
