#include "daemon/session/common_mesh.h"

#include <algorithm>

#include "core/placement.h"

namespace dtorch {
namespace {

bool includes(const PlacedMesh& mesh, const PlacedMesh& other) {
  const auto& ranks = mesh.mesh.ranks();
  return std::all_of(other.mesh.ranks().begin(), other.mesh.ranks().end(),
                     [&](Rank rank) { return std::find(ranks.begin(), ranks.end(), rank) != ranks.end(); });
}

bool isSameButForNames(const PlacedMesh& a, const PlacedMesh& b) {
  return a.mesh.ranks() == b.mesh.ranks() && a.mesh.shape() == b.mesh.shape();
}

// The mesh of what is written, if the others can come there; or else of a tensor that cannot leave its own, or the
// smallest; of meshes of equal size the one of most dimensions.
const PlacedMesh* commonMesh(absl::Span<const TensorLayout* const> inputs, absl::Span<const std::uint32_t> written) {
  const auto isFixed = [](const TensorLayout* input) { return !isAllReplicate(input->placements); };
  if (!written.empty()) {
    const PlacedMesh* mesh = inputs[written[0]]->mesh;
    const bool othersCome = std::all_of(inputs.begin(), inputs.end(), [&](const TensorLayout* input) {
      return isSameButForNames(*input->mesh, *mesh) || (!isFixed(input) && includes(*input->mesh, *mesh));
    });
    if (othersCome) return mesh;
  }
  const auto fixed = std::find_if(inputs.begin(), inputs.end(), isFixed);
  if (fixed != inputs.end()) return (*fixed)->mesh;
  return (*std::min_element(inputs.begin(), inputs.end(),
                            [](const TensorLayout* a, const TensorLayout* b) {
                              const DeviceMesh& left = a->mesh->mesh;
                              const DeviceMesh& right = b->mesh->mesh;
                              return left.size() != right.size() ? left.size() < right.size()
                                                                 : left.dims() > right.dims();
                            }))
      ->mesh;
}

}  // namespace

bool haveSameRanks(const PlacedMesh& a, const PlacedMesh& b) { return includes(a, b) && includes(b, a); }

void toCommonMesh(absl::Span<const TensorLayout*> inputs, absl::Span<const std::uint32_t> written,
                  LayoutTable* layouts) {
  const auto isElsewhere = [&](const TensorLayout* input) { return input->mesh != inputs[0]->mesh; };
  if (std::none_of(inputs.begin(), inputs.end(), isElsewhere)) return;
  const PlacedMesh* common = commonMesh(inputs, written);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const TensorLayout& input = *inputs[i];
    if (isSameButForNames(*input.mesh, *common)) {
      if (input.mesh != common) inputs[i] = layouts->intern({input.meta, common, input.placements});
      continue;
    }
    const bool isWritten = std::find(written.begin(), written.end(), i) != written.end();
    const bool fits = isWritten ? haveSameRanks(*input.mesh, *common) : includes(*input.mesh, *common);
    if (!isAllReplicate(input.placements) || !fits) continue;
    inputs[i] = layouts->intern(
        {input.meta, common, Placements(static_cast<std::size_t>(common->mesh.dims()), Placement::replicate())});
  }
}

}  // namespace dtorch
