#pragma once
#include <cstdint>
#include <memory>
#include <utility>

#include "core/device_mesh.h"

namespace dtorch {

class SessionCore;

/// A device mesh of one session. Cheap to copy. Made by Session::mesh.
class Mesh {
 public:
  Mesh() = default;
  /// A default-constructed Mesh has none: check with `if (mesh)`.
  const DeviceMesh& device() const { return data_->device; }
  std::int64_t size() const { return data_->device.size(); }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  friend class SessionCore;
  struct Data {
    const SessionCore* session;  // compared, never followed
    std::uint32_t id;
    DeviceMesh device;
  };
  explicit Mesh(std::shared_ptr<const Data> data) : data_(std::move(data)) {}
  std::shared_ptr<const Data> data_;
};

}  // namespace dtorch
