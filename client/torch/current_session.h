#pragma once
#include <chrono>
#include <memory>
#include <string>

#include "client/cpp/session.h"

namespace dtorch {

/// The session that the device `dtorch` of this process stands for. Thread: safe.
/// A forked child has none: its tensors are the parent's, and what is set there is nothing.
std::shared_ptr<Session> currentSession();
void setCurrentSession(std::shared_ptr<Session> session);

/// Where tensors that are made from nothing lie: a mesh (default: all workers) and placements (default: all Replicate).
struct Destination {
  Mesh mesh;
  Placements placements;
};
/// Of the process: autograd runs parts of a program on threads of its own.
Destination currentDestination();
void setCurrentDestination(Destination destination);
/// Whether calls redistribute inputs that no placement rule takes as they lie; else they are refused.
bool redistributesImplicitly();
/// What was so before.
bool setRedistributesImplicitly(bool implicit);

/// Of each call from now on, in ms; 0: none.
void setCurrentTimeLimit(std::chrono::milliseconds limit);
std::chrono::milliseconds currentTimeLimit();

/// Raises a c10::Error of the status' text.
[[noreturn]] void raise(const absl::Status& status);

}  // namespace dtorch
