#include "proto/grpc_lifetime.h"

#include <grpc/grpc.h>

namespace dtorch {

void keepGrpc() {
  static const bool kept = (grpc_init(), true);
  static_cast<void>(kept);
}

}  // namespace dtorch
