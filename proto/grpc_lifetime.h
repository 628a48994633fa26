#pragma once

namespace dtorch {

/// Keeps gRPC as it is until the process ends; to be called before anything of it is made. When its last object goes,
/// gRPC waits for threads of its own, for up to 10 s.
void keepGrpc();

}  // namespace dtorch
