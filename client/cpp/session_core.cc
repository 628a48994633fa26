#include "client/cpp/session_core.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/status_payload.h"
#include "core/call_site.h"
#include "proto/codec.h"
#include "proto/limits.h"
#include "proto/segment_codec.h"

namespace dtorch {
namespace {

constexpr std::size_t kChunkBytes = 1u << 20;  // a multiple of every element size

/// Reads the elements of several views one after the other.
class PartReader {
 public:
  explicit PartReader(absl::Span<const HostView> parts) : parts_(parts) {}
  std::string read(std::size_t bytes) {
    std::string data(bytes, '\0');
    readInto(reinterpret_cast<std::byte*>(data.data()), bytes);
    return data;
  }
  void readInto(std::byte* out, std::size_t bytes) {
    std::size_t filled = 0;
    while (filled < bytes) {
      const HostView& part = parts_[part_];
      const auto size = static_cast<std::size_t>(elementSize(part.meta.dtype));
      const std::int64_t count =
          std::min(part.meta.numel() - element_, static_cast<std::int64_t>((bytes - filled) / size));
      copyElements(part, element_, count, out + filled);
      filled += static_cast<std::size_t>(count) * size;
      element_ += count;
      if (element_ == part.meta.numel()) {
        element_ = 0;
        ++part_;
      }
    }
  }

 private:
  absl::Span<const HostView> parts_;
  std::size_t part_ = 0;
  std::int64_t element_ = 0;
};

// 0: none. One that is over already is the shortest that there is.
std::uint32_t wireTimeout(std::chrono::milliseconds timeout) {
  constexpr std::int64_t kLongest = std::numeric_limits<std::uint32_t>::max();
  return timeout.count() == 0 ? 0 : static_cast<std::uint32_t>(std::clamp<std::int64_t>(timeout.count(), 1, kLongest));
}

}  // namespace

Tensor::Handle::~Handle() {
  if (id != 0) session->release(id);
}

Tensor SessionCore::failed(absl::string_view what, Site site, const absl::Status& status) {
  v1::Status error;
  toWire(status, &error);
  error.set_operator_name(std::string(what));
  error.set_site(CallSite{site.file, site.line}.toString());
  return Tensor(std::make_shared<const Tensor::Handle>(nullptr, 0, statusFromError(error)));
}

Tensor SessionCore::make(TensorId id) {
  return Tensor(std::make_shared<const Tensor::Handle>(shared_from_this(), id, absl::OkStatus()));
}

absl::StatusOr<Mesh> SessionCore::mesh(const DeviceMesh& device) {
  if (isParents()) return forkedError();
  CommandQueue::Appender commands = queue_.append();
  const std::lock_guard lock(mutex_);
  for (const auto& known : meshes_) {
    if (known->device == device) return Mesh(known);
  }
  if (meshes_.size() >= kMaxMeshes) {
    return absl::ResourceExhaustedError(absl::StrCat("a session has at most ", kMaxMeshes, " meshes"));
  }
  const auto id = static_cast<std::uint32_t>(meshes_.size() + 1);
  meshes_.push_back(std::make_shared<const Mesh::Data>(Mesh::Data{this, id, device}));
  if (commands) {
    v1::MeshDefinition* definition = commands.add()->mutable_define_mesh();
    definition->set_id(id);
    toWire(device, definition->mutable_mesh());
  }
  return Mesh(meshes_.back());
}

Mesh SessionCore::meshOf(std::uint32_t id) {
  const std::lock_guard lock(mutex_);
  return id == 0 || id > meshes_.size() ? Mesh() : Mesh(meshes_[id - 1]);
}

absl::Status SessionCore::meshError(const Mesh& mesh) const {
  if (isParents()) return forkedError();
  if (!mesh) return absl::InvalidArgumentError("no mesh was given: use Session::mesh()");
  if (mesh.data_->session != this) return absl::InvalidArgumentError("the mesh belongs to another session");
  return absl::OkStatus();
}

void SessionCore::setSite(CommandQueue::Appender& commands, Site site, std::uint32_t& number) {
  bool fresh = false;
  std::tie(number, fresh) = sites_.intern(site);
  if (!fresh) return;
  v1::SiteDefinition* definition = commands.add()->mutable_define_site();
  definition->set_id(number);
  definition->set_file(site.file);
  definition->set_line(site.line);
}

SessionCore* SessionCore::sessionOf(absl::Span<const Argument> arguments) {
  const auto owner = [](const Tensor& tensor) { return tensor.defined() ? tensor.handle_->session.get() : nullptr; };
  for (const Argument& argument : arguments) {
    if (const Tensor* tensor = argument.tensor(); tensor != nullptr && owner(*tensor) != nullptr) return owner(*tensor);
    if (argument.tensors() == nullptr) continue;
    for (const Tensor& tensor : *argument.tensors()) {
      if (owner(tensor) != nullptr) return owner(tensor);
    }
  }
  return nullptr;
}

Tensor SessionCore::withoutSession(absl::string_view name, absl::Span<const Argument> arguments, Site site) {
  for (const Argument& argument : arguments) {
    const Tensor* tensor = argument.tensor();
    if (tensor != nullptr && tensor->defined()) return *tensor;  // holds an error
  }
  return failed(name, site, absl::InvalidArgumentError("no argument is a tensor: use Session::call"));
}

namespace {

// What an argument takes in a message, at most. Tensors are named, so only texts and lists matter.
std::size_t wireBytes(const Value& value) {
  if (const auto* text = value.as<std::string>()) return text->size();
  if (const auto* integers = value.as<std::vector<std::int64_t>>()) return 10 * integers->size();
  if (const auto* reals = value.as<std::vector<double>>()) return 8 * reals->size();
  if (const auto* booleans = value.as<std::vector<bool>>()) return booleans->size();
  std::size_t bytes = 16;
  if (const auto* values = value.as<std::vector<Value>>()) {
    for (const Value& element : *values) bytes += 4 + wireBytes(element);
  }
  return bytes;
}

// The elements of two parts of equal shape, bit by bit.
bool sameElements(const HostView& a, const HostView& b) {
  if (a.meta.shape != b.meta.shape || a.meta.dtype != b.meta.dtype) return false;
  PartReader left({&a, 1});
  PartReader right({&b, 1});
  for (auto rest = static_cast<std::size_t>(a.meta.bytes()); rest > 0;) {
    const std::size_t bytes = std::min(kChunkBytes, rest);
    if (left.read(bytes) != right.read(bytes)) return false;
    rest -= bytes;
  }
  return true;
}

// A part that is not what another rank holds, though the placements say so; in mesh order.
std::optional<int> differingReplica(absl::Span<const HostView> parts, const DeviceMesh& mesh,
                                    const Placements& placements) {
  for (int i = 0; i < static_cast<int>(parts.size()); ++i) {
    int step = 1;
    int first = i;  // the rank that differs from this one in replicated mesh dimensions only, and comes first
    for (int m = mesh.dims(); m-- > 0; step *= static_cast<int>(mesh.shape()[static_cast<std::size_t>(m)])) {
      const bool replicated = placements.empty() || placements[static_cast<std::size_t>(m)].isReplicate();
      const auto extent = static_cast<int>(mesh.shape()[static_cast<std::size_t>(m)]);
      if (replicated) first -= i / step % extent * step;
    }
    if (first != i && !sameElements(parts[static_cast<std::size_t>(first)], parts[static_cast<std::size_t>(i)]))
      return i;
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<TensorId> SessionCore::submit(absl::string_view name, absl::Span<const Argument> arguments,
                                             std::uint32_t outputs, const CallOptions& options, const Mesh& world,
                                             Site site, FutureId explained) {
  absl::InlinedVector<TensorId, 8> inputs;
  absl::Status error = isParents() ? failed(name, site, forkedError()).handle_->error : absl::OkStatus();
  const auto addInput = [&](const Tensor& tensor) {
    if (!tensor.defined() || !error.ok()) return;
    const Tensor::Handle& handle = *tensor.handle_;
    if (!handle.error.ok()) {
      error = handle.error;
    } else if (handle.session.get() != this) {
      error = failed(name, site,
                     absl::InvalidArgumentError(
                         absl::StrCat("tensor ", inputs.size(), " of the arguments belongs to another session")))
                  .handle_->error;
    }
    inputs.push_back(handle.id);
  };
  const auto addInputs = [&](const Argument& argument) {
    if (const Tensor* tensor = argument.tensor()) return addInput(*tensor);
    if (argument.tensors() == nullptr) return;
    for (const Tensor& tensor : *argument.tensors()) addInput(tensor);
  };
  std::size_t bytes = name.size();
  const auto add = [&](const Argument& argument) {
    addInputs(argument);
    if (argument.value() != nullptr) bytes += wireBytes(*argument.value());
  };
  for (const Argument& argument : arguments) add(argument);
  for (const NamedArgument& named : options.named) add(named.second);
  if (!error.ok()) return error;
  if (bytes > kMaxArgumentBytes) {
    return failed(name.substr(0, 256), site,
                  absl::InvalidArgumentError(absl::StrCat("its arguments take ", bytes, " bytes; at most ",
                                                          kMaxArgumentBytes,
                                                          " are sent with a call: put large data as a tensor")))
        .handle_->error;
  }

  std::uint32_t mesh = 0;
  if (inputs.empty()) {
    const Mesh& chosen = options.mesh ? options.mesh : world;
    if (absl::Status status = meshError(chosen); !status.ok()) return failed(name, site, status).handle_->error;
    mesh = chosen.data_->id;
  }

  CommandQueue::Appender commands = queue_.append();
  if (!commands) return TensorId{0};
  const TemplateTable::Entry known =
      templates_.intern({name, arguments, options.named, outputs, mesh, options.placements}, bytes);
  if (known.define != nullptr) {
    v1::TemplateDefinition* definition = commands.add(bytes)->mutable_define_template();
    definition->set_id(known.id);
    definition->set_name(std::string(name));
    toWire(*known.define, definition->mutable_arguments());
    definition->set_outputs(outputs);
    definition->set_mesh(mesh);
    toWire(options.placements, definition->mutable_placements());
  }
  std::uint32_t number = 0;
  setSite(commands, site, number);
  v1::Command* command = commands.add();
  if (explained != 0) {
    command->mutable_explain()->set_future(explained);
    command->mutable_explain()->set_template_id(known.id);
    command->mutable_explain()->mutable_inputs()->Add(inputs.begin(), inputs.end());
    command->set_site(number);
    return TensorId{0};
  }
  command->set_template_id(known.id);
  command->set_implicit(options.implicit);
  command->set_timeout_ms(wireTimeout(options.timeout));
  command->mutable_inputs()->Add(inputs.begin(), inputs.end());
  command->set_first_output(nextTensor_);
  command->set_site(number);
  return std::exchange(nextTensor_, nextTensor_ + outputs);
}

Tensor SessionCore::callOne(absl::string_view name, absl::Span<const Argument> arguments, const CallOptions& options,
                            const Mesh& world, Site site) {
  absl::StatusOr<TensorId> id = submit(name, arguments, 1, options, world, site);
  if (!id.ok()) return Tensor(std::make_shared<const Tensor::Handle>(nullptr, 0, id.status()));
  return make(*id);
}

std::vector<Tensor> SessionCore::call(absl::string_view name, absl::Span<const Argument> arguments,
                                      std::uint32_t outputs, const CallOptions& options, const Mesh& world, Site site) {
  absl::StatusOr<TensorId> first = submit(name, arguments, outputs, options, world, site);
  if (!first.ok())
    return std::vector<Tensor>(outputs, Tensor(std::make_shared<const Tensor::Handle>(nullptr, 0, first.status())));
  std::vector<Tensor> tensors;
  for (std::uint32_t i = 0; i < outputs; ++i) tensors.push_back(make(*first == 0 ? 0 : *first + i));
  return tensors;
}

Tensor SessionCore::put(absl::Span<const HostView> parts, bool whole, TensorMeta global, const Mesh& mesh,
                        const Placements& placements, const TransferOptions& options, Site site) {
  const char* what = whole ? "put" : "putShards";
  if (absl::Status status = meshError(mesh); !status.ok()) return failed(what, site, status);
  if (!whole && static_cast<std::int64_t>(parts.size()) != mesh.size()) {
    return failed(what, site,
                  absl::InvalidArgumentError(absl::StrCat(parts.size(), " parts were given for the ", mesh.size(),
                                                          " ranks of ", mesh.device().toString())));
  }
  std::size_t total = 0;
  for (const HostView& part : parts) {
    absl::StatusOr<TensorMeta> meta = checkView(part);
    if (!meta.ok()) return failed(what, site, meta.status());
    if (meta->dtype != global.dtype) {
      return failed(
          what, site,
          absl::InvalidArgumentError(absl::StrCat("a part is ", meta->toString(), ", another ", name(global.dtype))));
    }
    total += static_cast<std::size_t>(meta->bytes());
  }

  if (const std::optional<int> other =
          whole || (!placements.empty() && static_cast<int>(placements.size()) != mesh.device().dims())
              ? std::nullopt
              : differingReplica(parts, mesh.device(), placements)) {
    return failed(
        what, site,
        absl::InvalidArgumentError(absl::StrCat("part ", *other, " differs from another that shall be its replica (",
                                                toString(placements), ")")));
  }

  PartReader reader(parts);
  const std::shared_ptr<Segment> segment = total > kInlineBytes ? lendableCopy(parts, total) : nullptr;
  const std::lock_guard putLock(putMutex_);
  TensorId id = 0;
  const bool sent = total <= kInlineBytes || segment != nullptr;  // with the header
  {
    const std::size_t inlined = total <= kInlineBytes ? total : 0;
    std::string data = reader.read(inlined);
    CommandQueue::Appender commands = queue_.append();
    if (!commands) return make(0);
    std::uint32_t number = 0;
    setSite(commands, site, number);
    id = nextTensor_++;
    v1::Command* command = commands.add(inlined);
    command->set_site(number);
    command->set_timeout_ms(wireTimeout(options.timeout));
    v1::Put* header = command->mutable_put();
    header->set_tensor(id);
    header->set_mesh(mesh.data_->id);
    toWire(global, header->mutable_meta());
    toWire(placements.empty() ? allReplicate(mesh.device().dims()) : placements, header->mutable_placements());
    header->set_parts(!whole);
    if (!whole) {
      for (const HostView& part : parts) {
        header->add_part_shapes()->mutable_values()->Add(part.meta.shape.begin(), part.meta.shape.end());
      }
    }
    header->set_inline_bytes(std::move(data));
    header->set_total_bytes(total);
    if (segment != nullptr) {
      toWire(segment->ref(), header->mutable_segment());
      const std::lock_guard lock(mutex_);
      lent_.emplace(id, segment);
      lentBytes_ += segment->size();
    }
  }
  for (std::size_t offset = sent ? total : 0; offset < total;) {
    const std::size_t bytes = std::min(kChunkBytes, total - offset);
    std::string data = reader.read(bytes);
    CommandQueue::Appender commands = queue_.append();
    if (!commands) break;
    v1::PutChunk* chunk = commands.add(bytes)->mutable_put_chunk();
    chunk->set_tensor(id);
    chunk->set_offset(offset);
    chunk->set_data(std::move(data));
    offset += bytes;
  }
  return make(id);
}

std::shared_ptr<Segment> SessionCore::lendableCopy(absl::Span<const HostView> parts, std::size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    if (!lends_ || lentBytes_ + bytes > kMaxLentBytes) return nullptr;
  }
  const bool oneRun = parts.size() == 1 && isContiguous(parts[0]);
  auto segment = oneRun ? pool_.takeCopyOf(0, parts[0].data, bytes) : pool_.take(0, bytes);
  if (!segment.ok()) return nullptr;
  if (!oneRun) PartReader(parts).readInto((*segment)->data(), bytes);
  return *std::move(segment);
}

void SessionCore::onPutTaken(TensorId tensor) {
  std::shared_ptr<Segment> segment;
  {
    const std::lock_guard lock(mutex_);
    const auto found = lent_.find(tensor);
    if (found == lent_.end()) return;
    segment = std::move(found->second);
    lent_.erase(found);
    lentBytes_ -= segment->size();
  }
  pool_.give(0, std::move(segment));
}

Tensor SessionCore::redistribute(const Tensor& tensor, const Placements& placements, const GradientOf& gradient,
                                 const TransferOptions& options, Site site) {
  const Tensor& gradientOf = gradient.tensor;
  if (!tensor.defined()) return failed("redistribute", site, absl::InvalidArgumentError("there is no tensor"));
  if (!tensor.handle_->error.ok()) return tensor;
  if (gradientOf.defined() && !gradientOf.handle_->error.ok()) return gradientOf;
  if (gradientOf.defined() && gradientOf.handle_->session != tensor.handle_->session) {
    return failed("redistribute", site, absl::InvalidArgumentError("a gradient of another session's tensor"));
  }
  SessionCore& self = *tensor.handle_->session;
  if (self.isParents()) return failed("redistribute", site, forkedError());
  TensorId output = 0;
  {
    CommandQueue::Appender commands = self.queue_.append();
    if (commands) {
      std::uint32_t number = 0;
      self.setSite(commands, site, number);
      output = self.nextTensor_++;
      v1::Command* command = commands.add();
      command->set_site(number);
      command->set_timeout_ms(wireTimeout(options.timeout));
      command->mutable_redistribute()->set_tensor(tensor.handle_->id);
      command->mutable_redistribute()->set_output(output);
      if (gradientOf.defined()) {
        command->mutable_redistribute()->set_gradient_of(gradientOf.handle_->id);
        command->mutable_redistribute()->set_share(gradient.share);
      }
      toWire(placements, command->mutable_redistribute()->mutable_placements());
    }
  }
  return self.make(output);
}

template <typename Fill>
std::shared_ptr<FutureState> SessionCore::request(FutureState::Kind kind, const Fill& fill) {
  if (isParents()) return std::make_shared<FutureState>(forkedError());
  CommandQueue::Appender commands = queue_.append();
  const FutureId id = nextFuture_++;
  std::shared_ptr<FutureState> state = newFuture(kind, id);
  // A queue that is closed without a cause yet: end() will fail the future.
  if (commands) fill(commands.add(), id);
  return state;
}

std::shared_ptr<FutureState> SessionCore::newFuture(FutureState::Kind kind, FutureId id) {
  auto state = std::make_shared<FutureState>(shared_from_this(), id, kind);
  const std::lock_guard lock(mutex_);
  if (cause_.ok()) {
    futures_.emplace(id, state);
  } else {
    state->resolve(cause_);
  }
  return state;
}

std::shared_ptr<FutureState> SessionCore::explain(absl::string_view name, absl::Span<const Argument> arguments,
                                                  std::uint32_t outputs, const CallOptions& options, const Mesh& world,
                                                  Site site) {
  if (isParents()) return std::make_shared<FutureState>(forkedError());
  FutureId id = 0;
  std::shared_ptr<FutureState> state;
  {
    const CommandQueue::Appender commands = queue_.append();
    id = nextFuture_++;
    state = newFuture(FutureState::Kind::kJson, id);
  }
  const absl::StatusOr<TensorId> submitted = submit(name, arguments, outputs, options, world, site, id);
  if (!submitted.ok()) state->resolve(submitted.status());
  return state;
}

std::shared_ptr<FutureState> SessionCore::rules() {
  return request(FutureState::Kind::kJson,
                 [](v1::Command* command, FutureId future) { command->mutable_list_rules()->set_future(future); });
}

std::shared_ptr<FutureState> SessionCore::declareRule(absl::string_view name, absl::string_view rule) {
  return request(FutureState::Kind::kDone, [&](v1::Command* command, FutureId future) {
    v1::DeclareRule* declared = command->mutable_declare_rule();
    declared->set_future(future);
    declared->set_operator_name(std::string(name));
    declared->set_rule(std::string(rule));
  });
}

std::shared_ptr<FutureState> SessionCore::redistributions(bool forget) {
  return request(FutureState::Kind::kJson, [forget](v1::Command* command, FutureId future) {
    command->mutable_list_redistributions()->set_future(future);
    command->mutable_list_redistributions()->set_forget(forget);
  });
}

std::shared_ptr<FutureState> SessionCore::get(const Tensor& tensor, bool local, Rank rank) {
  if (!tensor.defined()) return std::make_shared<FutureState>(absl::InvalidArgumentError("there is no tensor to get"));
  const Tensor::Handle& handle = *tensor.handle_;
  if (!handle.error.ok()) return std::make_shared<FutureState>(handle.error);
  return handle.session->request(FutureState::Kind::kValue, [&](v1::Command* command, FutureId future) {
    v1::Get* get = command->mutable_get();
    get->set_future(future);
    get->set_tensor(handle.id);
    get->set_local(local);
    get->set_rank(rank);
    get->set_by_ticket(handle.session->byTicket_.load(std::memory_order_relaxed));
  });
}

std::shared_ptr<FutureState> SessionCore::describe(const Tensor& tensor) {
  if (!tensor.defined())
    return std::make_shared<FutureState>(absl::InvalidArgumentError("there is no tensor to describe"));
  const Tensor::Handle& handle = *tensor.handle_;
  if (!handle.error.ok()) return std::make_shared<FutureState>(handle.error);
  return handle.session->request(FutureState::Kind::kInfo, [&](v1::Command* command, FutureId future) {
    command->mutable_describe()->set_future(future);
    command->mutable_describe()->set_tensor(handle.id);
  });
}

std::shared_ptr<FutureState> SessionCore::synchronize() {
  return request(FutureState::Kind::kDone,
                 [](v1::Command* command, FutureId future) { command->mutable_synchronize()->set_future(future); });
}

std::shared_ptr<FutureState> SessionCore::awaitWorkers() {
  return request(FutureState::Kind::kDone,
                 [](v1::Command* command, FutureId future) { command->mutable_await_workers()->set_future(future); });
}

std::uint64_t SessionCore::cancelCalls() {
  std::uint64_t serial = 0;
  {
    CommandQueue::Appender commands = queue_.appendAtOnce();
    serial = ++lastCancel_;
    if (commands) commands.add()->mutable_cancel_calls()->set_serial(serial);
  }
  queue_.flush();
  return serial;
}

void SessionCore::release(TensorId tensor) {
  if (isParents()) return;
  CommandQueue::Appender commands = queue_.appendAtOnce();
  if (!commands) return;
  v1::Command* last = commands.last();
  if (last == nullptr || !last->has_release()) last = commands.add();
  last->mutable_release()->add_tensors(tensor);
}

void SessionCore::cancel(FutureId future) {
  if (isParents()) return;
  {
    const std::lock_guard lock(mutex_);
    futures_.erase(future);
  }
  CommandQueue::Appender commands = queue_.appendAtOnce();
  if (commands) commands.add()->mutable_cancel_get()->set_future(future);
}

void SessionCore::onResult(const v1::FutureResult& result) {
  std::shared_ptr<FutureState> state;
  {
    const std::lock_guard lock(mutex_);
    const auto it = futures_.find(result.future());
    if (it != futures_.end()) state = it->second.lock();
  }
  if (state == nullptr || !state->onResult(result, meshOf(result.mesh()))) return;
  const std::lock_guard lock(mutex_);
  futures_.erase(result.future());
}

void SessionCore::onValue(FutureId future, const SnapshotOr& value) {
  std::shared_ptr<FutureState> state;
  {
    const std::lock_guard lock(mutex_);
    const auto it = futures_.find(future);
    if (it != futures_.end()) state = it->second.lock();
  }
  if (state == nullptr) return;  // who dropped it has cancelled it
  absl::StatusOr<TensorMeta> meta = value.ok() ? makeMeta((*value)->dtype, (*value)->shape) : value.status();
  if (!meta.ok() || (*value)->segment == nullptr) {
    {
      CommandQueue::Appender commands = queue_.appendAtOnce();
      if (commands) commands.add()->mutable_stream_value()->set_future(future);
    }
    return queue_.flush();
  }
  // The worker uses the memory for other values once it is given back. A child that was forked meanwhile may still read
  // it, so that then it stays the session's.
  const std::shared_ptr<Segment>& segment = (*value)->segment;
  std::shared_ptr<std::byte[]> data(segment->data(),
                                    [segment, future, forks = forkCount(), self = shared_from_this()](std::byte*) {
                                      if (forks == forkCount()) self->cancel(future);
                                    });
  {
    const std::lock_guard lock(mutex_);
    futures_.erase(future);
  }
  state->onValue(*std::move(meta), std::move(data));
}

void SessionCore::end(absl::Status cause) {
  queue_.stop();
  absl::flat_hash_map<FutureId, std::weak_ptr<FutureState>> waiting;
  {
    const std::lock_guard lock(mutex_);
    if (!cause_.ok()) return;
    cause_ = cause;
    waiting.swap(futures_);
    lent_.clear();
    lends_ = false;
  }
  pool_.forget(0);
  for (const auto& [id, weak] : waiting) {
    if (const std::shared_ptr<FutureState> state = weak.lock()) state->resolve(cause);
  }
}

}  // namespace dtorch
