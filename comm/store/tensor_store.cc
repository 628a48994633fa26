#include "comm/store/tensor_store.h"

#include <ATen/ops/from_blob.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "dispatch/dtype.h"

namespace dtorch {
TensorStore::TensorStore(Rank rank, Segment segment, const SharedHeap* heap)
    : segment_(std::move(segment)), board_(segment_.data()), self_{rank, ::getpid(), segment_.ref()}, memory_(heap) {}

TensorStore::~TensorStore() {
  abort();
  const std::lock_guard lock(mutex_);
  for (auto& [key, source] : sources_) free(source);
  board_.left().store(1, std::memory_order_release);
  for (const auto& [rank, remote] : remotes_) remote->board.ring();
}

absl::StatusOr<std::unique_ptr<TensorStore>> TensorStore::create(Rank rank, const SharedHeap* heap) {
  auto segment = Segment::create("dtorch-store", TensorBoard::bytes());
  if (!segment.ok()) return segment.status();
  return std::unique_ptr<TensorStore>(new TensorStore(rank, *std::move(segment), heap));
}

absl::Status TensorStore::setPeers(const std::vector<Peer>& peers) {
  std::map<Rank, std::shared_ptr<Remote>> remotes;
  for (const Peer& peer : peers) {
    auto remote = std::make_shared<Remote>();
    const auto gone = absl::UnavailableError(absl::StrCat("rank ", peer.rank, " (process ", peer.pid, ") died"));
    remote->pid = peer.pid;
    if (peer.pid != self_.pid) {
      // First the watch, then the inode: that the segment is still the peer's says that the watch is on the peer.
      auto watch = ProcessWatch::open(peer.pid);
      if (!watch.ok()) return gone;
      remote->watch = *std::move(watch);
    }
    auto segment = Segment::open(peer.board);
    if (!segment.ok() || segment->size() != TensorBoard::bytes()) return gone;
    remote->segment = *std::move(segment);
    remote->board = TensorBoard(remote->segment.data());
    remotes[peer.rank] = std::move(remote);
  }
  const std::lock_guard lock(mutex_);
  readings_.clear();
  remotes_ = std::move(remotes);
  return absl::OkStatus();
}

absl::Status TensorStore::srcSet(const std::string& key, const at::Tensor& tensor, int readers) {
  if (key.size() >= TensorBoard::kMaxKey)
    return absl::InvalidArgumentError(absl::StrCat("key of ", key.size(), " bytes: ", key));
  if (readers < 1) return absl::InvalidArgumentError(absl::StrCat(readers, " readers for key ", key));
  if (!tensor.defined() || !tensor.is_cpu() || tensor.layout() != c10::kStrided ||
      tensor.dim() > static_cast<std::int64_t>(TensorBoard::kMaxDims)) {
    return absl::InvalidArgumentError(
        absl::StrCat("key ", key, " needs a strided CPU tensor of at most 16 dimensions"));
  }
  const auto dtype = fromTorch(tensor.scalar_type());
  if (!dtype.ok()) return dtype.status();
  const std::lock_guard lock(mutex_);
  if (sources_.contains(key)) return absl::AlreadyExistsError(absl::StrCat("key ", key, " is set"));
  const auto full = [] { return absl::ResourceExhaustedError(absl::StrCat(TensorBoard::kEntries, " keys are set")); };
  if (sources_.size() >= TensorBoard::kEntries) return full();
  TensorBoard::Description what;
  Source source;
  try {
    // A hand-over that was waited for finds the caches cold: what need not be called costs several times what it seems.
    const bool asItIs = !tensor.is_conj() && !tensor.is_neg();
    source.tensor = asItIs ? tensor : tensor.detach().resolve_conj().resolve_neg();
    const bool remote =
        std::any_of(remotes_.begin(), remotes_.end(), [this](const auto& r) { return r.second->pid != self_.pid; });
    // Strides reach further than the elements when rows are apart: what is shared is all that they span.
    std::size_t span = 0;
    if (source.tensor.numel() > 0) {
      span = 1;
      for (std::int64_t d = 0; d < tensor.dim(); ++d) {
        span += static_cast<std::size_t>((source.tensor.size(d) - 1) * source.tensor.stride(d));
      }
      span *= source.tensor.element_size();
    }
    what.empty = span == 0;
    what.data = memory_.describe(static_cast<const std::byte*>(source.tensor.const_data_ptr()), span);
    if (remote && !what.empty && !what.data.isShared()) {
      source.tensor = source.tensor.detach().contiguous();
      auto copy = Segment::create("dtorch-tensor", source.tensor.nbytes());
      if (!copy.ok()) return copy.status();
      std::memcpy(copy->data(), source.tensor.const_data_ptr(), source.tensor.nbytes());
      source.copy = *std::move(copy);
      what.data.segment = source.copy.ref();
      what.data.offset = 0;
      what.data.address = reinterpret_cast<std::uintptr_t>(source.copy.data());
    }
  } catch (const std::exception& e) {
    return absl::ResourceExhaustedError(absl::StrCat("setting key ", key, ": ", e.what()));
  }
  what.dtype = *dtype;
  what.dims = static_cast<std::int32_t>(source.tensor.dim());
  std::copy(source.tensor.sizes().begin(), source.tensor.sizes().end(), what.shape.begin());
  std::copy(source.tensor.strides().begin(), source.tensor.strides().end(), what.strides.begin());
  source.entry = board_.set(key, what, static_cast<std::uint32_t>(readers), ++generation_);
  if (source.entry == nullptr) return full();
  sources_[key] = std::move(source);
  for (const auto& [rank, remote] : remotes_) remote->board.ring();
  return absl::OkStatus();
}

absl::Status TensorStore::srcWaitUntilGetFinished(const std::string& key, Deadline deadline) {
  TensorBoard::Entry* entry = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const auto it = sources_.find(key);
    if (it == sources_.end()) return absl::FailedPreconditionError(absl::StrCat("key ", key, " is not set"));
    entry = it->second.entry;
  }
  for (;;) {
    const std::uint32_t seen = changes();
    const absl::Status death = findDead();
    const std::uint32_t finished = entry->finished.load(std::memory_order_acquire);
    if (finished >= entry->readers) break;
    if (!death.ok()) return death;
    const std::string what = absl::StrCat(entry->readers - finished, " of ", entry->readers, " readers of key ", key);
    if (absl::Status over = pause(seen, deadline, what); !over.ok()) return over;
  }
  absl::Status verdict;
  if (entry->refused.load(std::memory_order_relaxed) != 0)
    verdict = absl::FailedPreconditionError(entry->reason.data());
  const std::lock_guard lock(mutex_);
  const auto it = sources_.find(key);
  if (it != sources_.end()) {
    free(it->second);
    sources_.erase(it);
  }
  return verdict;
}

absl::StatusOr<at::Tensor> TensorStore::destGet(Rank source, const std::string& key, Deadline deadline) {
  for (;;) {
    const std::uint32_t seen = changes();
    auto found = destTryGet(source, key);
    if (!found.ok()) return found.status();
    if (*found) return **std::move(found);
    if (absl::Status over = pause(seen, deadline, absl::StrCat("key ", key, " of rank ", source)); !over.ok())
      return over;
  }
}

absl::StatusOr<std::optional<at::Tensor>> TensorStore::destTryGet(Rank source, const std::string& key) {
  auto from = remote(source);
  if (!from.ok()) return from.status();
  auto found = lookUp(source, key, **from);
  if (!found.ok() || *found) return found;
  const absl::Status death = absenceOf(source, **from);
  if (death.ok()) return found;
  // Looked up once more: what it set before its death is still there.
  found = lookUp(source, key, **from);
  return found.ok() && !*found ? death : found;
}

absl::StatusOr<std::optional<at::Tensor>> TensorStore::lookUp(Rank source, const std::string& key, Remote& from) {
  std::uint64_t after = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto reading = readings_.find({source, key});
    if (reading != readings_.end() && reading->second.open) {
      return absl::FailedPreconditionError(absl::StrCat("key ", key, " of rank ", source, " is being read"));
    }
    if (reading != readings_.end()) after = reading->second.generation;
  }
  TensorBoard::Entry* entry = from.board.find(key, after);
  if (entry == nullptr) return std::optional<at::Tensor>();
  PeerMemory::Access access;
  if (!entry->what.empty) {
    auto opened = memory_.open(entry->what.data);
    if (!opened.ok()) {
      return absl::UnavailableError(
          absl::StrCat("memory of key ", key, " of rank ", source, ": ", opened.status().message()));
    }
    access = *std::move(opened);
  }
  const auto dims = static_cast<std::size_t>(entry->what.dims);
  at::Tensor view;
  try {
    const at::TensorOptions options = at::TensorOptions().dtype(toTorch(entry->what.dtype));
    view = at::from_blob(
        access.data, c10::IntArrayRef(entry->what.shape.data(), dims),
        c10::IntArrayRef(entry->what.strides.data(), dims), [memory = access.segment](void*) {}, options);
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("key ", key, " of rank ", source, ": ", e.what()));
  }
  const std::lock_guard lock(mutex_);
  // What was read is remembered only while its source keeps it set: keys may all be different.
  if (readings_.size() >= TensorBoard::kEntries) {
    std::erase_if(readings_, [](const auto& item) {
      const Reading& reading = item.second;
      return !reading.open && (reading.entry->isSet.load(std::memory_order_acquire) == 0 ||
                               reading.entry->generation.load(std::memory_order_relaxed) != reading.generation);
    });
  }
  readings_[{source, key}] = {entry, entry->generation.load(std::memory_order_relaxed), true, access.segment};
  return std::optional<at::Tensor>(std::move(view));
}

absl::Status TensorStore::destFinishGet(Rank source, const std::string& key, const absl::Status& verdict) {
  auto from = remote(source);
  if (!from.ok()) return from.status();
  const std::lock_guard lock(mutex_);
  Reading& reading = readings_[{source, key}];
  if (!reading.open)
    return absl::FailedPreconditionError(absl::StrCat("key ", key, " of rank ", source, " is not being read"));
  reading.open = false;
  reading.memory.reset();
  const std::string refusal =
      verdict.ok() ? "" : absl::StrCat("rank ", self_.rank, " refused key ", key, ": ", verdict.message());
  if (!TensorBoard::finish(*reading.entry, reading.generation, refusal)) {
    return absl::FailedPreconditionError(
        absl::StrCat("more readers finished key ", key, " than rank ", source, " announced"));
  }
  (*from)->board.ring();
  return absl::OkStatus();
}

absl::StatusOr<at::Tensor> TensorStore::destGetAndToDevice(Rank source, const std::string& key, c10::Device device,
                                                           Deadline deadline) {
  auto view = destGet(source, key, deadline);
  if (!view.ok()) return view.status();
  absl::StatusOr<at::Tensor> copy;
  try {
    copy = view->to(view->options().device(device), /*non_blocking=*/false, /*copy=*/true);
  } catch (const std::exception& e) {
    copy = absl::ResourceExhaustedError(absl::StrCat("copying key ", key, " of rank ", source, ": ", e.what()));
  }
  if (absl::Status finished = destFinishGet(source, key); !finished.ok()) return finished;
  return copy;
}

void TensorStore::free(Source& source) {
  TensorBoard::free(*source.entry);
  source.tensor.reset();
}

absl::Status TensorStore::barrier(Deadline deadline) {
  std::map<Rank, std::shared_ptr<Remote>> remotes;
  std::uint32_t mine = 0;
  {
    const std::lock_guard lock(mutex_);
    remotes = remotes_;
    mine = ++barriers_;
    board_.barriers().store(mine, std::memory_order_release);
    for (const auto& [rank, remote] : remotes_) remote->board.ring();
  }
  for (const auto& [rank, remote] : remotes) {
    for (;;) {
      const std::uint32_t seen = changes();
      const absl::Status death = absenceOf(rank, *remote);
      const std::uint32_t theirs = remote->board.barriers().load(std::memory_order_acquire);
      if (static_cast<std::int32_t>(theirs - mine) >= 0) break;
      if (!death.ok()) return death;
      if (absl::Status over = pause(seen, deadline, absl::StrCat("rank ", rank, " at a barrier")); !over.ok())
        return over;
    }
  }
  return absl::OkStatus();
}

absl::Status TensorStore::reset(Deadline deadline) {
  if (absl::Status all = barrier(deadline); !all.ok()) return all;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [key, source] : sources_) free(source);
    sources_.clear();
    readings_.clear();
  }
  return barrier(deadline);
}

void TensorStore::abort() {
  aborted_.store(true, std::memory_order_release);
  ring();
}

std::uint32_t TensorStore::changes() const { return board_.changes(); }

void TensorStore::awaitChange(std::uint32_t seen, Deadline deadline) const { board_.awaitChange(seen, deadline); }

void TensorStore::ring() { board_.ring(); }

absl::StatusOr<std::shared_ptr<TensorStore::Remote>> TensorStore::remote(Rank rank) const {
  const std::lock_guard lock(mutex_);
  const auto it = remotes_.find(rank);
  if (it == remotes_.end()) return absl::NotFoundError(absl::StrCat("rank ", self_.rank, " knows no rank ", rank));
  return it->second;
}

absl::Status TensorStore::deathOf(Rank rank, const Remote& remote) {
  if (remote.watch.pid() == 0 || !remote.watch.exited()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("rank ", rank, " (process ", remote.pid, ") died"));
}

absl::Status TensorStore::absenceOf(Rank rank, const Remote& remote) {
  if (remote.board.left().load(std::memory_order_acquire) == 0) return deathOf(rank, remote);
  return absl::UnavailableError(absl::StrCat("rank ", rank, " left"));
}

absl::Status TensorStore::peerStatus(Rank rank) const {
  auto peer = remote(rank);
  return peer.ok() ? absenceOf(rank, **peer) : peer.status();
}

absl::Status TensorStore::findDead() const {
  const std::lock_guard lock(mutex_);
  for (const auto& [rank, remote] : remotes_) {
    if (absl::Status death = deathOf(rank, *remote); !death.ok()) return death;
  }
  return absl::OkStatus();
}

/// COMM-1, with the look at the peer that comes before.
absl::Status TensorStore::pause(std::uint32_t seen, Deadline deadline, const std::string& what) const {
  if (aborted_.load(std::memory_order_acquire)) {
    return absl::AbortedError(absl::StrCat("the wait for ", what, " was aborted"));
  }
  const auto now = std::chrono::steady_clock::now();
  if (now >= deadline) {
    return absl::DeadlineExceededError(absl::StrCat("rank ", self_.rank, " waited in vain for ", what));
  }
  awaitChange(seen, std::min(deadline, now + kLookAround));
  return absl::OkStatus();
}

}  // namespace dtorch
