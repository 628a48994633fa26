// What the Python package asks of the device: torch.ops.dtorch_device.*
#include <torch/library.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "client/python/object.h"
#include "client/torch/call_site.h"
#include "client/torch/current_session.h"
#include "client/torch/generator.h"
#include "client/torch/host_values.h"
#include "client/torch/remote_tensor.h"
#include "core/placement.h"
#include "dispatch/dtype.h"

namespace dtorch {
namespace {

template <typename T>
T& objectAt(std::int64_t address) {
  return std::get<T>(reinterpret_cast<dtorch_object*>(address)->value);
}

/// 0: none.
void useSession(std::int64_t session) {
  setCurrentSession(session == 0 ? nullptr : objectAt<std::shared_ptr<Session>>(session));
}

Placements placementsOf(const std::string& text) {
  absl::StatusOr<Placements> placements = parsePlacements(text);
  if (!placements.ok()) raise(placements.status());
  return *placements;
}

at::Tensor distribute(const at::Tensor& host, std::int64_t mesh, const std::string& placements) {
  return makeRemote(putHost(host, {objectAt<Mesh>(mesh), placementsOf(placements)}), host.scalar_type(), host.sizes());
}

at::Tensor distributeParts(const std::vector<at::Tensor>& parts, c10::IntArrayRef shape, std::int64_t mesh,
                           const std::string& placements) {
  TORCH_CHECK(!parts.empty(), "no parts");
  const Destination destination{objectAt<Mesh>(mesh), placementsOf(placements)};
  return makeRemote(putParts(parts, shape.vec(), destination), parts[0].scalar_type(), shape);
}

/// The client's handle of a tensor's value, to be freed by who takes it.
std::int64_t handleOf(const at::Tensor& tensor) {
  return reinterpret_cast<std::int64_t>(new dtorch_object{remoteImpl(tensor).remote()});
}

/// Where tensors come to lie that are made from nothing, or come from the host. 0: on all workers.
void useDestination(std::int64_t mesh, const std::string& placements) {
  setCurrentDestination(mesh == 0 ? Destination() : Destination{objectAt<Mesh>(mesh), placementsOf(placements)});
}

/// Random numbers begin anew.
void manualSeed(std::int64_t seed) {
  defaultGenerator().get<RemoteGenerator>()->set_current_seed(std::bit_cast<std::uint64_t>(seed));
}

at::Tensor randomState() {
  const Tensor state = rngState();
  const absl::StatusOr<TensorInfo> info = state.describe().get();
  if (!info.ok()) raise(info.status());
  return makeRemote(state, toTorch(info->meta.dtype), info->meta.shape);
}

void setRandomState(const at::Tensor& state) {
  setRngState(isRemote(state) ? remoteImpl(state).remote() : putHost(state, {}));
}

/// Of each call from now on; 0: none.
void useTimeLimit(double seconds) {
  setCurrentTimeLimit(std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(std::min(seconds, 4e6) * 1000))));
}

void synchronize() {
  if (absl::Status status = currentSession()->synchronize().get(); !status.ok()) raise(status);
}

}  // namespace

TORCH_LIBRARY(dtorch_device, library) {
  library.def("use_session(int session) -> ()", TORCH_FN(useSession));
  library.def("use_destination(int mesh, str placements) -> ()", TORCH_FN(useDestination));
  library.def("manual_seed(int seed) -> ()", TORCH_FN(manualSeed));
  library.def("pass_over_frames_of(str folder) -> ()", TORCH_FN(passOverFramesOf));
  library.def("get_rng_state() -> Tensor", TORCH_FN(randomState));
  library.def("set_rng_state(Tensor state) -> ()", TORCH_FN(setRandomState));
  library.def("synchronize() -> ()", TORCH_FN(synchronize));
  library.def("use_implicit_redistribution(bool implicit) -> bool", TORCH_FN(setRedistributesImplicitly));
  library.def("use_time_limit(float seconds) -> ()", TORCH_FN(useTimeLimit));
  library.def("distribute(Tensor host, int mesh, str placements) -> Tensor", TORCH_FN(distribute));
  library.def("distribute_parts(Tensor[] parts, int[] shape, int mesh, str placements) -> Tensor",
              TORCH_FN(distributeParts));
  library.def("handle(Tensor tensor) -> int", TORCH_FN(handleOf));
}

}  // namespace dtorch
