#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "core/device_mesh.h"
#include "core/placement.h"
#include "dispatch/prepared_call.h"
#include "dtorch/v1/worker.pb.h"
#include "worker/stream_order.h"

namespace dtorch {

/// Tensors up to this size make a brief task.
inline constexpr std::int64_t kBriefBytes = 16 << 10;

/// One ATen operator with its arguments bound. Its outputs become the slots from `firstOutput`.
struct KernelAction {
  std::string name;
  PreparedCall call;
  std::vector<std::uint32_t> reads;   // slots
  std::vector<std::uint32_t> writes;  // slots among them that the operator changes
  std::uint32_t firstOutput = 0;
  std::uint32_t outputs = 0;
  bool mutates = false;
  bool random = false;  // draws from the session's random state
  bool own = false;     // of the namespace dtorch: may ask for its OperatorHost
};

/// One redistribution. Its output becomes slot `output`.
struct ConvertAction {
  std::uint32_t input = 0;  // slot
  std::uint32_t output = 0;
  std::vector<std::int64_t> shape;  // global
  Placements from;
  Placements to;
  bool local = false;  // needs no other rank
};

using PlanAction = std::variant<KernelAction, ConvertAction>;

/// A run of actions on one stream.
struct PlanSegment {
  StreamKind stream = StreamKind::kCompute;
  std::uint32_t begin = 0;  // actions
  std::uint32_t end = 0;
  std::vector<std::uint32_t> inputs;  // the call's inputs that it reads
  bool mutates = false;
};

/// What an output of the call must look like here.
struct ExpectedOutput {
  c10::ScalarType dtype;
  std::vector<std::int64_t> shape;    // local
  std::vector<std::int64_t> strides;  // empty: not known
  bool isWhole = false;               // not a part: this rank's kernels saw what was planned for
  static constexpr int kOwnMemory = -1;
  static constexpr int kUnknown = -2;
  int alias = kUnknown;  // the input whose memory it shares
};

/// A v1::Plan as this rank runs it: decoded, checked and bound once.
class Plan {
 public:
  /// A plan that cannot run here gets `error` and no segments: each of its calls fails with it. INVALID_ARGUMENT: not
  /// even that can be told, since its mesh does not decode.
  static absl::StatusOr<std::unique_ptr<const Plan>> create(const v1::Plan& wire, Rank rank, at::Device device);

  /// Whether a kernel writes to `input`.
  bool writes(std::uint32_t input) const;

  PlanId id = 0;
  std::string name;
  DeviceMesh mesh;
  at::Device device;  // of its kernels
  /// This rank's position; none: the rank is not in the mesh and ignores the plan's runs.
  std::optional<std::vector<std::int64_t>> coordinate;
  std::uint32_t inputs = 0;
  std::uint32_t slots = 0;
  std::vector<PlanAction> actions;
  std::vector<PlanSegment> segments;
  std::vector<std::uint32_t> outputs;    // slots
  std::vector<ExpectedOutput> expected;  // one for each output, or empty: not checked
  bool reportsOutputs = false;           // this rank says what came out
  bool brief = false;                    // takes next to no time if its inputs are small
  absl::Status error;

 private:
  Plan(DeviceMesh planMesh, at::Device planDevice) : mesh(std::move(planMesh)), device(planDevice) {}
  absl::Status decode(const v1::Plan& wire);
  absl::Status addSlots(std::uint32_t count);
  absl::Status decodeKernel(const v1::KernelStep& wire);
  absl::Status decodeConvert(const v1::ConvertStep& wire);
  absl::Status decodeOutputs(const v1::Plan& wire);
  void divideIntoSegments();
  /// At most one kernel, of a core operator whose work is in proportion to its inputs and outputs, and small outputs.
  bool takesNoTime() const;
};

}  // namespace dtorch
