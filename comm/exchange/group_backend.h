#pragma once

namespace dtorch {

/// How the ranks of one group reach each other's bytes. One choice for the whole group, the same on all its ranks.
enum class GroupBackend {
  /// All are threads of one process: by address.
  kMemory,
  /// Several processes of one host: where they are in shared memory, else through chunks. Ranks of one process among
  /// them reach each other by address.
  kFile,
};

}  // namespace dtorch
