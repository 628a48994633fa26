#pragma once
#include <memory>
#include <string>

#include "client/cpp/session.h"

namespace dtorch {

/// The session that the device `dtorch` of this process stands for. Thread: safe.
/// A forked child has none: its tensors are the parent's.
std::shared_ptr<Session> currentSession();
void setCurrentSession(std::shared_ptr<Session> session);

/// Where tensors that are made from nothing lie: a mesh (default: all workers) and placements (default: all Replicate).
struct Destination {
  Mesh mesh;
  Placements placements;
};
/// Of this thread.
Destination& currentDestination();

/// Raises a c10::Error of the status' text.
[[noreturn]] void raise(const absl::Status& status);

}  // namespace dtorch
