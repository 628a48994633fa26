#pragma once
#include <cstdint>

#include "absl/types/span.h"
#include "daemon/graph/tensor_layout.h"

namespace dtorch {

/// Brings inputs of one call that lie on different meshes to one of them, as far as nothing has to move for that: names
/// of dimensions do not matter, and one that is Replicate on all ranks of another's mesh is so on that mesh, too. What
/// is in `written` must be on no other ranks. Others stay what they are, and are refused later.
void toCommonMesh(absl::Span<const TensorLayout*> inputs, absl::Span<const std::uint32_t> written,
                  LayoutTable* layouts);

/// Whether both meshes are of the same ranks.
bool haveSameRanks(const PlacedMesh& a, const PlacedMesh& b);

}  // namespace dtorch
