#pragma once
#include <cerrno>
#include <zmq.hpp>

namespace dtorch {

/// What `call` of a ZeroMQ socket returns. One that a signal interrupts, even one that does not wait, is begun anew.
template <typename Call>
auto uninterrupted(const Call& call) {
  for (;;) {
    try {
      return call();
    } catch (const zmq::error_t& error) {
      if (error.num() != EINTR) throw;
    }
  }
}

}  // namespace dtorch
