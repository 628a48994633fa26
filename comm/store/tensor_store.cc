#include "comm/store/tensor_store.h"

#include <ATen/ops/from_blob.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "dispatch/dtype.h"
#include "shm/futex.h"

namespace dtorch {
namespace {
constexpr std::size_t kEntries = 256;
constexpr std::size_t kMaxDims = 16;
constexpr std::size_t kMaxKey = 96;
constexpr std::chrono::milliseconds kLookAround{50};
}  // namespace

/// The source writes everything but `finished`, and publishes it by `state`.
struct TensorStore::Entry {
  enum State : std::uint32_t { kFree = 0, kSet = 1 };
  std::atomic<std::uint32_t> state;
  std::atomic<std::uint32_t> finished;
  std::atomic<std::uint64_t> generation;
  std::uint32_t readers;
  std::array<char, kMaxKey> key;
  DType dtype;
  std::int32_t dims;
  std::array<std::int64_t, kMaxDims> shape;
  std::array<std::int64_t, kMaxDims> strides;
  bool empty;
  BufferRef data;
};

struct TensorStore::Board {
  /// Counts what happened to entries; sources and readers sleep on it.
  std::atomic<std::uint32_t> changes;
  std::array<Entry, kEntries> entries;

  void changed() {
    changes.fetch_add(1, std::memory_order_seq_cst);
    futexWakeAll(changes);
  }
  Entry* find(const std::string& wanted, std::uint64_t after) {
    for (Entry& entry : entries) {
      if (entry.state.load(std::memory_order_acquire) == Entry::kSet && wanted == entry.key.data() &&
          entry.generation.load(std::memory_order_relaxed) > after) {
        return &entry;
      }
    }
    return nullptr;
  }
};

TensorStore::TensorStore(Rank rank, Segment segment, const SharedHeap* heap)
    : segment_(std::move(segment)),
      board_(reinterpret_cast<Board*>(segment_.data())),
      self_{rank, ::getpid(), segment_.ref()},
      memory_(heap) {}

TensorStore::~TensorStore() { abort(); }

absl::StatusOr<std::unique_ptr<TensorStore>> TensorStore::create(Rank rank, const SharedHeap* heap) {
  auto segment = Segment::create("dtorch-store", sizeof(Board));
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
    if (!segment.ok() || segment->size() != sizeof(Board)) return gone;
    remote->segment = *std::move(segment);
    remote->board = reinterpret_cast<Board*>(remote->segment.data());
    remotes[peer.rank] = std::move(remote);
  }
  const std::lock_guard lock(mutex_);
  remotes_ = std::move(remotes);
  return absl::OkStatus();
}

absl::Status TensorStore::srcSet(const std::string& key, const at::Tensor& tensor, int readers) {
  if (key.size() >= kMaxKey) return absl::InvalidArgumentError(absl::StrCat("key of ", key.size(), " bytes: ", key));
  if (readers < 1) return absl::InvalidArgumentError(absl::StrCat(readers, " readers for key ", key));
  if (!tensor.defined() || !tensor.is_cpu() || tensor.layout() != c10::kStrided ||
      tensor.dim() > static_cast<std::int64_t>(kMaxDims)) {
    return absl::InvalidArgumentError(absl::StrCat("key ", key, " needs a strided CPU tensor of at most 16 dimensions"));
  }
  const auto dtype = fromTorch(tensor.scalar_type());
  if (!dtype.ok()) return dtype.status();
  const std::lock_guard lock(mutex_);
  if (sources_.contains(key)) return absl::AlreadyExistsError(absl::StrCat("key ", key, " is set"));
  const auto free = std::find_if(board_->entries.begin(), board_->entries.end(), [](const Entry& e) {
    return e.state.load(std::memory_order_relaxed) == Entry::kFree;
  });
  if (free == board_->entries.end()) return absl::ResourceExhaustedError(absl::StrCat(kEntries, " keys are set"));
  Source source;
  source.entry = &*free;
  try {
    source.tensor = tensor.detach().resolve_conj().resolve_neg();
    const bool remote = std::any_of(remotes_.begin(), remotes_.end(), [this](const auto& r) { return r.second->pid != self_.pid; });
    // Strides reach further than the elements when rows are apart: what is shared is all that they span.
    std::size_t span = 0;
    if (source.tensor.numel() > 0) {
      span = 1;
      for (std::int64_t d = 0; d < tensor.dim(); ++d) {
        span += static_cast<std::size_t>((source.tensor.size(d) - 1) * source.tensor.stride(d));
      }
      span *= source.tensor.element_size();
    }
    free->empty = span == 0;
    free->data = memory_.describe(static_cast<const std::byte*>(source.tensor.const_data_ptr()), span);
    if (remote && !free->empty && !free->data.isShared()) {
      source.tensor = source.tensor.contiguous();
      auto copy = Segment::create("dtorch-tensor", source.tensor.nbytes());
      if (!copy.ok()) return copy.status();
      std::memcpy(copy->data(), source.tensor.const_data_ptr(), source.tensor.nbytes());
      source.copy = *std::move(copy);
      free->data.segment = source.copy.ref();
      free->data.offset = 0;
      free->data.address = reinterpret_cast<std::uintptr_t>(source.copy.data());
    }
  } catch (const std::exception& e) {
    return absl::ResourceExhaustedError(absl::StrCat("setting key ", key, ": ", e.what()));
  }
  free->key.fill('\0');
  std::memcpy(free->key.data(), key.data(), key.size());
  free->dtype = *dtype;
  free->dims = static_cast<std::int32_t>(source.tensor.dim());
  std::copy(source.tensor.sizes().begin(), source.tensor.sizes().end(), free->shape.begin());
  std::copy(source.tensor.strides().begin(), source.tensor.strides().end(), free->strides.begin());
  free->readers = static_cast<std::uint32_t>(readers);
  free->finished.store(0, std::memory_order_relaxed);
  free->generation.store(++generation_, std::memory_order_relaxed);
  free->state.store(Entry::kSet, std::memory_order_release);
  sources_[key] = std::move(source);
  board_->changed();
  return absl::OkStatus();
}

absl::Status TensorStore::srcWaitUntilGetFinished(const std::string& key, Deadline deadline) {
  Entry* entry = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const auto it = sources_.find(key);
    if (it == sources_.end()) return absl::FailedPreconditionError(absl::StrCat("key ", key, " is not set"));
    entry = it->second.entry;
  }
  for (;;) {
    const std::uint32_t seen = board_->changes.load(std::memory_order_seq_cst);
    const std::uint32_t finished = entry->finished.load(std::memory_order_acquire);
    if (finished >= entry->readers) break;
    const std::string what = absl::StrCat(entry->readers - finished, " of ", entry->readers, " readers of key ", key);
    if (absl::Status over = pause(board_->changes, seen, deadline, what, [this] { return findDead(); }); !over.ok()) return over;
  }
  const std::lock_guard lock(mutex_);
  const auto it = sources_.find(key);
  if (it != sources_.end()) {
    free(it->second);
    sources_.erase(it);
  }
  return absl::OkStatus();
}

absl::StatusOr<at::Tensor> TensorStore::destGet(Rank source, const std::string& key, Deadline deadline) {
  auto from = remote(source);
  if (!from.ok()) return from.status();
  Board& board = *(*from)->board;
  std::uint64_t after = 0;
  {
    const std::lock_guard lock(mutex_);
    Reading& reading = readings_[{source, key}];
    if (reading.open) return absl::FailedPreconditionError(absl::StrCat("key ", key, " of rank ", source, " is being read"));
    after = reading.generation;
  }
  const auto dead = [&from, source]() -> absl::Status {
    const Remote& r = **from;
    if (r.watch.pid() == 0 || !r.watch.exited()) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("rank ", source, " (process ", r.pid, ") died"));
  };
  Entry* entry = nullptr;
  for (;;) {
    const std::uint32_t seen = board.changes.load(std::memory_order_seq_cst);
    if ((entry = board.find(key, after)) != nullptr) break;
    const std::string what = absl::StrCat("key ", key, " of rank ", source);
    if (absl::Status over = pause(board.changes, seen, deadline, what, dead); !over.ok()) return over;
  }
  PeerMemory::Access access;
  if (!entry->empty) {
    auto opened = memory_.open(entry->data);
    if (!opened.ok()) {
      return absl::UnavailableError(absl::StrCat("memory of key ", key, " of rank ", source, ": ", opened.status().message()));
    }
    access = *std::move(opened);
  }
  const auto dims = static_cast<std::size_t>(entry->dims);
  at::Tensor view;
  try {
    const at::TensorOptions options = at::TensorOptions().dtype(toTorch(entry->dtype));
    view = at::from_blob(access.data, c10::IntArrayRef(entry->shape.data(), dims), c10::IntArrayRef(entry->strides.data(), dims),
                         [memory = access.segment](void*) {}, options);
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("key ", key, " of rank ", source, ": ", e.what()));
  }
  const std::lock_guard lock(mutex_);
  readings_[{source, key}] = {entry, entry->generation.load(std::memory_order_relaxed), true, access.segment};
  return view;
}

absl::Status TensorStore::destFinishGet(Rank source, const std::string& key) {
  auto from = remote(source);
  if (!from.ok()) return from.status();
  const std::lock_guard lock(mutex_);
  Reading& reading = readings_[{source, key}];
  if (!reading.open) return absl::FailedPreconditionError(absl::StrCat("key ", key, " of rank ", source, " is not being read"));
  reading.open = false;
  reading.memory.reset();
  Entry& entry = *reading.entry;
  const bool stale = entry.generation.load(std::memory_order_relaxed) != reading.generation;
  if (stale || entry.finished.fetch_add(1, std::memory_order_acq_rel) >= entry.readers) {
    return absl::FailedPreconditionError(absl::StrCat("more readers finished key ", key, " than rank ", source, " announced"));
  }
  (*from)->board->changed();
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
  source.entry->state.store(Entry::kFree, std::memory_order_release);
  source.tensor.reset();
}

void TensorStore::reset() {
  const std::lock_guard lock(mutex_);
  for (auto& [key, source] : sources_) free(source);
  sources_.clear();
  for (auto& [key, reading] : readings_) reading.open = false;
}

void TensorStore::abort() {
  aborted_.store(true, std::memory_order_release);
  const std::lock_guard lock(mutex_);
  board_->changed();
  for (const auto& [rank, remote] : remotes_) futexWakeAll(remote->board->changes);
}

absl::StatusOr<std::shared_ptr<TensorStore::Remote>> TensorStore::remote(Rank rank) const {
  const std::lock_guard lock(mutex_);
  const auto it = remotes_.find(rank);
  if (it == remotes_.end()) return absl::NotFoundError(absl::StrCat("rank ", self_.rank, " knows no rank ", rank));
  return it->second;
}

absl::Status TensorStore::findDead() const {
  const std::lock_guard lock(mutex_);
  for (const auto& [rank, remote] : remotes_) {
    if (remote->watch.pid() != 0 && remote->watch.exited()) {
      return absl::UnavailableError(absl::StrCat("rank ", rank, " (process ", remote->pid, ") died"));
    }
  }
  return absl::OkStatus();
}

absl::Status TensorStore::pause(const std::atomic<std::uint32_t>& word, std::uint32_t seen, Deadline deadline,
                                const std::string& what, const std::function<absl::Status()>& dead) const {
  if (aborted_.load(std::memory_order_acquire)) return absl::AbortedError(absl::StrCat("the wait for ", what, " was aborted"));
  if (absl::Status gone = dead(); !gone.ok()) return gone;
  const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - std::chrono::steady_clock::now());
  if (left.count() <= 0) {
    return absl::DeadlineExceededError(absl::StrCat("rank ", self_.rank, " waited in vain for ", what));
  }
  futexWait(word, seen, std::min<std::chrono::nanoseconds>(left, kLookAround));
  return absl::OkStatus();
}

}  // namespace dtorch
