#include "comm/future/tensor_future.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dispatch/dtype.h"

namespace dtorch {

class TensorFuture::State {
 public:
  /// False: it is resolved.
  bool resolve(Result result) {
    std::vector<std::function<void(const Result&)>> callbacks;
    {
      const std::lock_guard lock(mutex_);
      if (result_) return false;
      result_ = std::move(result);
      callbacks.swap(callbacks_);
    }
    ready_.notify_all();
    for (const auto& callback : callbacks) callback(*result_);
    return true;
  }
  bool isReady() const {
    const std::lock_guard lock(mutex_);
    return result_.has_value();
  }
  const Result* await(Deadline deadline) const {
    std::unique_lock lock(mutex_);
    ready_.wait_until(lock, deadline, [this] { return result_.has_value(); });
    return result_ ? &*result_ : nullptr;
  }
  void onReady(std::function<void(const Result&)> callback) {
    {
      const std::lock_guard lock(mutex_);
      if (!result_) {
        callbacks_.push_back(std::move(callback));
        return;
      }
    }
    callback(*result_);
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable ready_;
  std::optional<Result> result_;  // does not change once it is there
  std::vector<std::function<void(const Result&)>> callbacks_;
};

namespace {

absl::StatusOr<DType> checkValue(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cpu() || tensor.layout() != c10::kStrided) {
    return absl::InvalidArgumentError("the value of a future is a strided CPU tensor");
  }
  return fromTorch(tensor.scalar_type());
}

/// A copy for this process alone.
TensorFuture::Result copyOf(const at::Tensor& tensor) {
  if (const auto dtype = checkValue(tensor); !dtype.ok()) return dtype.status();
  try {
    return tensor.detach().resolve_conj().resolve_neg().clone(at::MemoryFormat::Contiguous);
  } catch (const std::exception& e) {
    return absl::ResourceExhaustedError(absl::StrCat("copying the value of a future: ", e.what()));
  }
}

absl::StatusOr<Segment> segmentOf(const at::Tensor& tensor) {
  const auto* data = static_cast<const std::byte*>(tensor.const_data_ptr());
  return Segment::copyOf("dtorch-value", data, tensor.nbytes());
}

SnapshotOr takeSnapshot(const at::Tensor& tensor) {
  const auto dtype = checkValue(tensor);
  if (!dtype.ok()) return dtype.status();
  auto snapshot = std::make_shared<Snapshot>();
  snapshot->dtype = *dtype;
  snapshot->shape = tensor.sizes().vec();
  const std::size_t bytes = tensor.nbytes();
  try {
    if (bytes > Snapshot::kInlineBytes) {
      auto segment = segmentOf(tensor.resolve_conj().resolve_neg().contiguous());
      if (!segment.ok()) return segment.status();
      snapshot->segment = std::make_shared<Segment>(*std::move(segment));
      return snapshot;
    }
    snapshot->bytes.resize(bytes);
    // Also resolves conjugate and negative views.
    if (bytes > 0) at::from_blob(snapshot->data(), tensor.sizes(), tensor.options()).copy_(tensor);
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("copying the value of a future: ", e.what()));
  }
  return snapshot;
}

TensorFuture::Result toTensor(const SnapshotOr& value) {
  if (!value.ok()) return value.status();
  const std::shared_ptr<Snapshot>& snapshot = *value;
  try {
    const at::TensorOptions options = at::TensorOptions().dtype(toTorch(snapshot->dtype));
    return at::from_blob(
        snapshot->data(), snapshot->shape, [snapshot](void*) {}, options);
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("the value of a future: ", e.what()));
  }
}

}  // namespace

TensorFuture TensorFuture::fetch(ValueClient& client, std::uint64_t id) {
  auto state = std::make_shared<State>();
  client.fetch(id, [state](const SnapshotOr& value) { state->resolve(toTensor(value)); });
  return TensorFuture(std::move(state));
}

bool TensorFuture::isReady() const { return state_->isReady(); }

bool TensorFuture::wait(Deadline deadline) const { return state_->await(deadline) != nullptr; }

TensorFuture::Result TensorFuture::get(Deadline deadline) const {
  const Result* result = state_->await(deadline);
  if (result == nullptr) return absl::DeadlineExceededError("the value of a future is not there yet");
  return *result;
}

void TensorFuture::onReady(std::function<void(const Result&)> callback) const { state_->onReady(std::move(callback)); }

TensorPromise::TensorPromise() : state_(std::make_shared<TensorFuture::State>()) {}

TensorPromise::TensorPromise(std::shared_ptr<ValueServer> server)
    : state_(std::make_shared<TensorFuture::State>()), server_(std::move(server)), ticket_(server_->announce()) {}

TensorPromise::~TensorPromise() {
  if (state_ == nullptr) return;  // moved from
  state_->resolve(absl::AbortedError("the promise of a value was dropped"));
  if (server_) server_->withdraw(ticket_.id);
}

absl::Status TensorPromise::set(const TensorFuture::Result& value) {
  if (state_->isReady()) return absl::FailedPreconditionError("the promise is resolved already");
  const absl::Status resolved = absl::FailedPreconditionError("the promise is resolved already");
  if (server_ == nullptr) {
    const TensorFuture::Result copy = value.ok() ? copyOf(*value) : value;
    if (!state_->resolve(copy)) return resolved;
    return value.ok() ? copy.status() : absl::OkStatus();
  }
  const SnapshotOr snapshot = value.ok() ? takeSnapshot(*value) : SnapshotOr(value.status());
  if (!state_->resolve(toTensor(snapshot))) return resolved;
  if (absl::Status told = server_->resolve(ticket_.id, snapshot); !told.ok()) return told;
  return value.ok() ? snapshot.status() : absl::OkStatus();
}

}  // namespace dtorch
