#pragma once
#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/exchange/peer_memory.h"
#include "comm/exchange/tensor_board.h"
#include "core/ids.h"
#include "shm/process_watch.h"
#include "shm/segment.h"

namespace dtorch {

/// Hands tensors by key from the rank that has them to ranks of its host that want them, without a copy: the source
/// sets (srcSet), each reader gets a view and says when it is done (destGet, destFinishGet), and the source waits for
/// all readers before it changes or frees the tensor (srcWaitUntilGetFinished). Readers may come first; a key is free
/// again after the source's wait. A tensor outside the shared heap is copied into shared memory once when it is set, if
/// any peer is another process.
///
/// What one rank does to an entry rings the board of whom it concerns: each rank sleeps on its own board alone.
///
/// Thread: safe, but one thread at a time for one key.
/// Errors of the waits: UNAVAILABLE naming the peer that died, DEADLINE_EXCEEDED, ABORTED after abort().
class TensorStore {
 public:
  using Deadline = std::chrono::steady_clock::time_point;
  /// Well below the second within which a death must be seen.
  static constexpr std::chrono::milliseconds kLookAround{50};

  struct Peer {
    Rank rank = 0;
    std::int64_t pid = 0;
    SegmentRef board;
  };

  /// Opens this rank's board, which peers must be told of.
  static absl::StatusOr<std::unique_ptr<TensorStore>> create(Rank rank, const SharedHeap* heap);
  ~TensorStore();

  const Peer& self() const { return self_; }
  /// Says who the other ranks are; done before anything is set. Nothing may be open for reading. UNAVAILABLE: a peer is
  /// gone.
  absl::Status setPeers(const std::vector<Peer>& peers);

  /// ALREADY_EXISTS: the key is set. INVALID_ARGUMENT: a key of more than 95 bytes, no strided CPU tensor, more than 16
  /// dimensions. RESOURCE_EXHAUSTED: 256 keys are set, or no memory.
  absl::Status srcSet(const std::string& key, const at::Tensor& tensor, int readers);
  /// Afterwards the key is free, unless the wait failed. FAILED_PRECONDITION with a reader's reason: it refused the
  /// tensor.
  absl::Status srcWaitUntilGetFinished(const std::string& key, Deadline deadline);
  /// Shape, dtype and strides are the source's. The view must not be written, nor used after destFinishGet.
  absl::StatusOr<at::Tensor> destGet(Rank source, const std::string& key, Deadline deadline);
  /// The same without a wait; nullopt: the key is not set. UNAVAILABLE: the source died without setting it.
  absl::StatusOr<std::optional<at::Tensor>> destTryGet(Rank source, const std::string& key);
  /// `verdict`: OK, or why this reader refuses the tensor. FAILED_PRECONDITION: nothing was got under this key, or more
  /// readers finished than the source said.
  absl::Status destFinishGet(Rank source, const std::string& key, const absl::Status& verdict = absl::OkStatus());
  /// destGet and destFinishGet around a copy on `device`.
  absl::StatusOr<at::Tensor> destGetAndToDevice(Rank source, const std::string& key, c10::Device device,
                                                Deadline deadline);

  /// Returns when all ranks have called it, each as often.
  absl::Status barrier(Deadline deadline);
  /// Called by all ranks: takes back everything that was set, read or not, between two barriers.
  absl::Status reset(Deadline deadline);
  /// Ends all waits of this rank, now and later. Any thread.
  void abort();

  /// For who waits for several things at once: looks at changes(), then at the things, then sleeps until there are
  /// others or ring() was called. Nobody tells of a death: who waits for a peer asks every kLookAround.
  std::uint32_t changes() const;
  void awaitChange(std::uint32_t seen, Deadline deadline) const;
  void ring();
  /// UNAVAILABLE: the peer died, or closed its store. NOT_FOUND: no such peer.
  absl::Status peerStatus(Rank rank) const;
  /// UNAVAILABLE naming a peer that died.
  absl::Status findDead() const;

 private:
  struct Source {
    TensorBoard::Entry* entry = nullptr;
    at::Tensor tensor;  // kept until all have read it
    Segment copy;       // in place of a tensor that is not in shared memory
  };
  struct Reading {
    TensorBoard::Entry* entry = nullptr;
    std::uint64_t generation = 0;
    bool open = false;
    std::shared_ptr<Segment> memory;
  };
  struct Remote {
    std::int64_t pid = 0;
    Segment segment;
    ProcessWatch watch;
    TensorBoard board{nullptr};
  };
  using ReadingKey = std::pair<Rank, std::string>;

  TensorStore(Rank rank, Segment segment, const SharedHeap* heap);
  absl::StatusOr<std::shared_ptr<Remote>> remote(Rank rank) const;
  static absl::Status deathOf(Rank rank, const Remote& remote);
  /// The same for a peer that closed its store, as it may when nobody waits for it.
  static absl::Status absenceOf(Rank rank, const Remote& remote);
  /// The entry of `key` that this rank has not read yet, opened for reading.
  absl::StatusOr<std::optional<at::Tensor>> lookUp(Rank source, const std::string& key, Remote& from);
  /// Sleeps until this rank's board may have changed; an error when the wait is over for another reason.
  absl::Status pause(std::uint32_t seen, Deadline deadline, const std::string& what) const;
  void free(Source& source);

  Segment segment_;
  const TensorBoard board_;
  const Peer self_;
  PeerMemory memory_;
  std::atomic<bool> aborted_ = false;

  mutable std::mutex mutex_;
  std::map<Rank, std::shared_ptr<Remote>> remotes_;
  std::map<std::string, Source> sources_;
  std::map<ReadingKey, Reading> readings_;
  std::uint64_t generation_ = 0;
  std::uint32_t barriers_ = 0;
};

}  // namespace dtorch
