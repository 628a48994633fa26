#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/call_site.h"
#include "daemon/session/session_services.h"
#include "dtorch/v1/client.pb.h"

namespace dtorch {

/// A call without its tensors, as a client has defined it.
struct TemplateEntry {
  std::shared_ptr<const OperatorTemplate> op;  // null: `error` says why
  std::string name;
  absl::Status error;
  std::uint32_t outputs = 0;
  std::size_t bytes = 0;  // of its definition
  bool inPlace = false;   // by its name
};

/// What a session's client has given numbers to: call sites, meshes, templates of calls.
///
/// Thread: the controller loop's. An error of a define is one of the protocol: the session ends with it. What is wrong
/// with a template itself fails the calls that use it.
class Definitions {
 public:
  explicit Definitions(SessionServices* services) : services_(services) {}

  absl::Status define(const v1::SiteDefinition& definition);
  absl::Status define(const v1::MeshDefinition& definition);
  absl::Status define(const v1::TemplateDefinition& definition);

  /// "train.cc:41"; empty when unknown.
  std::string site(std::uint32_t id) const;
  /// NOT_FOUND
  absl::StatusOr<const PlacedMesh*> mesh(std::uint32_t id) const;
  /// The number that the client has given to the mesh; 0: none.
  std::uint32_t idOf(const PlacedMesh* mesh) const;
  /// Null: not defined.
  const TemplateEntry* callTemplate(std::uint32_t id) const;

  void addUsed(absl::flat_hash_set<const PlacedMesh*>& meshes) const;

 private:
  SessionServices* const services_;
  absl::flat_hash_map<std::uint32_t, TemplateEntry> templates_;
  std::size_t templateBytes_ = 0;
  absl::flat_hash_map<std::uint32_t, const PlacedMesh*> meshes_;
  absl::flat_hash_map<std::uint32_t, CallSite> sites_;
};

}  // namespace dtorch
