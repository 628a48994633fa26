// What the Python package asks of the device: torch.ops.dtorch_device.*
#include <torch/library.h>

#include <string>
#include <vector>

#include "client/torch/call_site.h"
#include "client/torch/current_session.h"
#include "client/torch/host_values.h"
#include "client/torch/remote_tensor.h"
#include "core/placement.h"
#include "dispatch/dtype.h"

namespace dtorch {
namespace {

std::int64_t connect(const std::string& address, double timeout, const std::string& name) {
  const auto limit =
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(timeout));
  absl::StatusOr<std::shared_ptr<Session>> session =
      Session::connect({.address = address, .timeout = limit, .name = name});
  if (!session.ok()) raise(session.status());
  setCurrentSession(*session);
  return (*session)->worldSize();
}

void disconnect() { setCurrentSession(nullptr); }

Mesh meshOf(const std::vector<std::int64_t>& ranks, std::vector<std::int64_t> shape) {
  const std::shared_ptr<Session> session = currentSession();
  if (ranks.empty()) return session->mesh();
  absl::StatusOr<Mesh> mesh = session->mesh({ranks.begin(), ranks.end()}, std::move(shape));
  if (!mesh.ok()) raise(mesh.status());
  return *mesh;
}

Placements placementsOf(const std::string& text) {
  absl::StatusOr<Placements> placements = parsePlacements(text);
  if (!placements.ok()) raise(placements.status());
  return *placements;
}

at::Tensor distribute(const at::Tensor& host, const std::vector<std::int64_t>& ranks, std::vector<std::int64_t> shape,
                      const std::string& placements) {
  const Destination destination{meshOf(ranks, std::move(shape)), placementsOf(placements)};
  return makeRemote(putHost(host, destination), host.scalar_type(), host.sizes());
}

at::Tensor redistribute(const at::Tensor& tensor, const std::string& placements) {
  return makeRemote(remoteImpl(tensor).remote().redistribute(placementsOf(placements)), tensor.scalar_type(),
                    tensor.sizes(), tensor.strides());
}

std::string placementsOfTensor(const at::Tensor& tensor) {
  const absl::StatusOr<TensorInfo> info = remoteImpl(tensor).remote().describe().get();
  if (!info.ok()) raise(info.status());
  return toString(info->placements);
}

at::Tensor localPart(const at::Tensor& tensor, std::int64_t rank) {
  const absl::StatusOr<HostTensor> value = remoteImpl(tensor).remote().getLocal(static_cast<Rank>(rank)).get();
  if (!value.ok()) raise(value.status());
  return toHost(*value);
}

/// Random numbers of all workers' mesh begin anew.
void manualSeed(std::int64_t seed) {
  const std::shared_ptr<Session> session = currentSession();
  session->callMany("dtorch::manual_seed", {seed}, 0, {}, callSite());
}

void synchronize() {
  if (absl::Status status = currentSession()->synchronize().get(); !status.ok()) raise(status);
}

}  // namespace

TORCH_LIBRARY(dtorch_device, library) {
  library.def("connect(str address, float timeout, str name) -> int", TORCH_FN(connect));
  library.def("disconnect() -> ()", TORCH_FN(disconnect));
  library.def("manual_seed(int seed) -> ()", TORCH_FN(manualSeed));
  library.def("pass_over_frames_of(str folder) -> ()", TORCH_FN(passOverFramesOf));
  library.def("synchronize() -> ()", TORCH_FN(synchronize));
  library.def("distribute(Tensor host, int[] ranks, int[] shape, str placements) -> Tensor", TORCH_FN(distribute));
  library.def("redistribute(Tensor tensor, str placements) -> Tensor", TORCH_FN(redistribute));
  library.def("placements(Tensor tensor) -> str", TORCH_FN(placementsOfTensor));
  library.def("local_part(Tensor tensor, int rank) -> Tensor", TORCH_FN(localPart));
}

}  // namespace dtorch
