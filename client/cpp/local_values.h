#pragma once
#include <map>
#include <memory>
#include <string>

#include "client/cpp/session_core.h"
#include "comm/future/value_client.h"
#include "dtorch/v1/client.pb.h"
#include "shm/mapped_segments.h"

namespace dtorch {

/// Gets large values of a session from the workers of this host, in the memory in which they lie there.
///
/// Thread: the connection's. Owns: one thread a worker.
class LocalValues {
 public:
  explicit LocalValues(std::shared_ptr<SessionCore> core) : core_(std::move(core)) {}

  /// Gives the core the value of `future`, or why it cannot be had here.
  void fetch(FutureId future, const v1::ValueTicket& ticket);

 private:
  static constexpr std::size_t kMappings = 64;
  static constexpr std::size_t kMappedBytes = 256 << 20;

  const std::shared_ptr<SessionCore> core_;
  const std::shared_ptr<MappedSegments> mapped_ = std::make_shared<MappedSegments>(kMappings, kMappedBytes);
  std::map<std::string, std::unique_ptr<ValueClient>> workers_;  // by their sockets
  bool reached_ = false;                                         // any of them, once
};

}  // namespace dtorch
