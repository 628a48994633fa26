#pragma once
#include "absl/status/status.h"

namespace dtorch {

/// How many fork()s lie between this process and the one that loaded the client library. A session belongs to the
/// process that began it: gRPC's threads, and whoever held one of its locks, do not come over a fork.
/// Thread: safe; costs a read.
int forkDepth();

/// How many children this process has forked since. They share the memory of the workers' values that were here before.
/// Thread: safe; costs a read.
int forkCount();

/// FAILED_PRECONDITION: what a forked child is told when it uses its parent's session.
const absl::Status& forkedError();

}  // namespace dtorch
