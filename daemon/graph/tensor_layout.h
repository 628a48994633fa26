#pragma once
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/container/node_hash_set.h"
#include "core/device_mesh.h"
#include "core/ids.h"
#include "core/placement.h"
#include "core/tensor_meta.h"

namespace dtorch {

/// A mesh that some session has defined, with the group of its ranks.
struct PlacedMesh {
  DeviceMesh mesh;
  GroupId group = 0;
};

/// Global metadata of a tensor and where its parts lie. Interned: equal layouts are one object, compared by address.
struct TensorLayout {
  TensorMeta meta;
  const PlacedMesh* mesh = nullptr;
  Placements placements;

  /// "float32[4, 4] [S(0)]".
  std::string toString() const { return meta.toString() + " " + dtorch::toString(placements); }
  friend bool operator==(const TensorLayout&, const TensorLayout&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const TensorLayout& l) {
    return H::combine(std::move(h), l.meta, l.mesh, l.placements);
  }
};

/// Thread: the controller loop's.
class LayoutTable {
 public:
  /// Valid until retain() is called without it.
  const TensorLayout* intern(TensorLayout layout) { return &*layouts_.insert(std::move(layout)).first; }
  std::size_t size() const { return layouts_.size(); }
  /// Drops all but these.
  void retain(const absl::flat_hash_set<const TensorLayout*>& used) {
    absl::erase_if(layouts_, [&](const TensorLayout& layout) { return !used.contains(&layout); });
  }

 private:
  absl::node_hash_set<TensorLayout> layouts_;
};

}  // namespace dtorch
