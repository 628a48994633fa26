#include "daemon/session/definitions.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/codec.h"
#include "proto/limits.h"

namespace dtorch {
namespace {

// What a session may define: programs have some hundreds of each.
constexpr std::uint32_t kMaxTemplates = 1u << 20;
constexpr std::size_t kMaxTemplateBytes = 256u << 20;
constexpr std::uint32_t kMaxSites = 1u << 18;
constexpr std::uint32_t kMaxOutputs = 1u << 16;

// "aten::add_.Tensor": it writes to an argument.
bool isInPlaceName(const std::string& name) {
  const std::string base = name.substr(0, name.find('.'));
  return base.size() > 1 && base.back() == '_' && base[base.size() - 2] != '_';
}

}  // namespace

absl::Status Definitions::define(const v1::SiteDefinition& definition) {
  if (definition.id() == 0 || definition.id() > kMaxSites) {
    return absl::InvalidArgumentError(absl::StrCat("site id ", definition.id(), " is none of 1 to ", kMaxSites));
  }
  sites_[definition.id()] = {printable(definition.file(), 512), definition.line()};
  return absl::OkStatus();
}

absl::Status Definitions::define(const v1::MeshDefinition& definition) {
  absl::StatusOr<DeviceMesh> wanted = fromWire(definition.mesh());
  if (!wanted.ok()) return wanted.status();
  for (const Rank rank : wanted->ranks()) {
    if (rank < services_->worldSize) continue;
    return absl::InvalidArgumentError(absl::StrCat("mesh ", wanted->toString(), " names rank ", rank,
                                                   "; this daemon has ", services_->worldSize, " workers"));
  }
  if (wanted->deviceType() != DeviceType::kCpu) {
    return absl::InvalidArgumentError(absl::StrCat("mesh ", wanted->toString(), ": the workers' devices are cpu"));
  }
  if (definition.id() == 0 || definition.id() > kMaxMeshes) {
    return absl::InvalidArgumentError(absl::StrCat("mesh id ", definition.id(), " is none of 1 to ", kMaxMeshes));
  }
  const absl::StatusOr<GroupId> group = services_->executor->groupOf(wanted->ranks());
  if (!group.ok()) return group.status();
  meshes_[definition.id()] = &services_->meshes.try_emplace(*wanted, PlacedMesh{*wanted, *group}).first->second;
  return absl::OkStatus();
}

absl::Status Definitions::define(const v1::TemplateDefinition& definition) {
  if (definition.id() == 0 || definition.id() > kMaxTemplates) {
    return absl::InvalidArgumentError(
        absl::StrCat("template id ", definition.id(), " is none of 1 to ", kMaxTemplates));
  }
  TemplateEntry& entry = templates_[definition.id()];
  templateBytes_ -= entry.bytes;
  entry = {nullptr,
           printable(definition.name(), 256),
           absl::OkStatus(),
           std::min(definition.outputs(), kMaxOutputs),
           definition.ByteSizeLong(),
           isInPlaceName(definition.name())};
  templateBytes_ += entry.bytes;
  if (entry.bytes > kMaxArgumentBytes) {
    entry.error = absl::InvalidArgumentError(
        absl::StrCat("its arguments take ", entry.bytes, " bytes; at most ", kMaxArgumentBytes, " are sent: put them"));
    return absl::OkStatus();
  }
  if (templateBytes_ > kMaxTemplateBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the session's templates take more than ", kMaxTemplateBytes, " bytes"));
  }
  const PlacedMesh* placedOn = nullptr;
  if (definition.mesh() != 0) {
    absl::StatusOr<const PlacedMesh*> found = mesh(definition.mesh());
    entry.error = found.status();
    if (!found.ok()) return absl::OkStatus();
    placedOn = *found;
  }
  v1::TemplateDefinition keyed = definition;
  keyed.clear_id();
  keyed.clear_mesh();
  const std::string key = absl::StrCat(keyed.SerializeAsString(), "@", reinterpret_cast<std::uintptr_t>(placedOn));
  if (const auto it = services_->templates.find(key); it != services_->templates.end()) {
    entry.op = it->second;
    return absl::OkStatus();
  }
  absl::StatusOr<Arguments> arguments = fromWire(definition.arguments());
  entry.error = arguments.status();
  if (!arguments.ok()) return absl::OkStatus();
  absl::StatusOr<Placements> placements = fromWire(definition.placements());
  entry.error = placements.status();
  if (!placements.ok()) return absl::OkStatus();
  absl::StatusOr<OperatorTemplate> made = OperatorTemplate::create(services_->policy, entry.name, *arguments,
                                                                   entry.outputs, placedOn, *std::move(placements));
  entry.error = made.status();
  if (!made.ok()) return absl::OkStatus();
  entry.op = std::make_shared<const OperatorTemplate>(*std::move(made));
  services_->templates.emplace(key, entry.op);
  services_->templateBytes += key.size();
  return absl::OkStatus();
}

std::string Definitions::site(std::uint32_t id) const {
  const auto it = sites_.find(id);
  return it == sites_.end() ? std::string() : it->second.toString();
}

absl::StatusOr<const PlacedMesh*> Definitions::mesh(std::uint32_t id) const {
  const auto it = meshes_.find(id);
  if (it == meshes_.end()) return absl::NotFoundError(absl::StrCat("mesh ", id, " is not defined in this session"));
  return it->second;
}

std::uint32_t Definitions::idOf(const PlacedMesh* mesh) const {
  for (const auto& [id, placedOn] : meshes_) {
    if (placedOn == mesh) return id;
  }
  return 0;
}

const TemplateEntry* Definitions::callTemplate(std::uint32_t id) const {
  const auto it = templates_.find(id);
  return it == templates_.end() ? nullptr : &it->second;
}

void Definitions::addUsed(absl::flat_hash_set<const PlacedMesh*>& meshes) const {
  for (const auto& [id, placedOn] : meshes_) meshes.insert(placedOn);
}

}  // namespace dtorch
