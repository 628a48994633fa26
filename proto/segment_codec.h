#pragma once
#include "dtorch/v1/types.pb.h"
#include "shm/segment.h"

namespace dtorch {

inline void toWire(const SegmentRef& ref, v1::SegmentRef* out) {
  out->set_pid(ref.pid);
  out->set_fd(ref.fd);
  out->set_inode(ref.inode);
  out->set_bytes(ref.bytes);
}

inline SegmentRef fromWire(const v1::SegmentRef& wire) { return {wire.pid(), wire.fd(), wire.inode(), wire.bytes()}; }

}  // namespace dtorch
