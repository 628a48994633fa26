#pragma once
#include <cstddef>

namespace dtorch {

/// memcpy for tensors: from 4 MiB on it writes past the caches, which saves reading what is overwritten. glibc's does
/// so only above a part of the cache that a virtual machine may overstate by far.
void bulkCopy(std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace dtorch
