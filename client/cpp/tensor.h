#pragma once
#include <chrono>
#include <memory>
#include <source_location>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/cpp/argument.h"
#include "client/cpp/future.h"
#include "client/cpp/host_tensor.h"
#include "client/cpp/mesh.h"
#include "client/cpp/site.h"
#include "core/ids.h"
#include "core/placement.h"

namespace dtorch {

class SessionCore;

/// Of puts and redistributions.
struct TransferOptions {
  std::chrono::milliseconds timeout{0};  // as CallOptions::timeout
};

/// A distributed tensor of a session. Cheap to copy; the daemon forgets it when the last copy is gone. Nothing here
/// waits for the daemon, unless the connection is slower than the program (see Session). A tensor may hold an error
/// instead of a value: every operator on it passes the error on, and whoever asks for a value gets it. Thread: safe as
/// a shared_ptr is.
class Tensor {
 public:
  /// No tensor: None as an argument.
  Tensor() = default;
  bool defined() const { return handle_ != nullptr; }

  /// The same value, placed as `placements` on its mesh.
  Tensor redistribute(Placements placements, const TransferOptions& options = {},
                      Site site = std::source_location::current()) const;
  /// The same value, placed as the gradient of `tensor` is: as that, and Replicate where that is Partial. `share`:
  /// nobody else has this one, so that it need not be copied where it lies right.
  Tensor redistributeAsGradientOf(const Tensor& tensor, bool share, Site site = std::source_location::current()) const;
  /// The whole value, as host memory.
  Future<HostTensor> get() const;
  /// The part that `rank` holds; of a Partial tensor, its summand.
  Future<HostTensor> getLocal(Rank rank) const;
  /// Shape, dtype and placements.
  Future<TensorInfo> describe() const;

 private:
  friend class SessionCore;
  struct Handle {
    Handle(std::shared_ptr<SessionCore> owner, TensorId number, absl::Status failure)
        : session(std::move(owner)), id(number), error(std::move(failure)) {}
    Handle(const Handle&) = delete;
    Handle& operator=(const Handle&) = delete;
    ~Handle();
    const std::shared_ptr<SessionCore> session;
    const TensorId id;         // 0: the daemon knows nothing of it
    const absl::Status error;  // found before anything was sent
  };
  explicit Tensor(std::shared_ptr<const Handle> handle) : handle_(std::move(handle)) {}
  std::shared_ptr<const Handle> handle_;
};

inline Argument::Argument(const std::vector<Tensor>& tensors) : data_(absl::MakeConstSpan(tensors)) {}

/// What a call may say besides its arguments.
struct CallOptions {
  std::vector<NamedArgument> named = {};
  Mesh mesh = {};              // for operators without tensor arguments, such as aten::ones; default: all workers
  Placements placements = {};  // likewise; default: Replicate
  /// Inputs that no placement rule takes as they lie are redistributed, as cheaply as can be, where otherwise the call
  /// is refused. Session::redistributions() tells which were.
  bool implicit = false;
  /// The call fails with DEADLINE_EXCEEDED, and so does all that depends on it, when it is not done in this time,
  /// counted from its arrival at the daemon. 0: it may take as long as it takes; less: it is over at once. In ms.
  std::chrono::milliseconds timeout{0};
};

/// Calls an ATen operator by its schema name ("aten::add.Tensor") in the session of its first tensor. Arguments left
/// out take the schema's defaults. Scalars are arguments too: call("aten::add.Scalar", {x, 2.0}).
Tensor call(absl::string_view name, absl::Span<const Argument> arguments, const CallOptions& options = {},
            Site site = std::source_location::current());
/// For operators that return `outputs` tensors.
std::vector<Tensor> callMany(absl::string_view name, absl::Span<const Argument> arguments, std::uint32_t outputs,
                             const CallOptions& options = {}, Site site = std::source_location::current());

}  // namespace dtorch
