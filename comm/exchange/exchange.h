#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "comm/exchange/group_backend.h"
#include "comm/exchange/lockstep.h"
#include "comm/exchange/rows.h"

namespace dtorch {

/// Writes to `out` the combination of `elements` elements of each of the `count` inputs, in that order. `out` may be
/// one of the inputs.
struct ReduceKernel {
  void (*run)(std::byte* out, const std::byte* const* inputs, int count, std::size_t elements) = nullptr;
  std::size_t elementBytes = 0;
};

/// The collectives of one group on bytes, for one of its ranks. Every rank makes the same calls in the same order; a
/// call is checked against the others' before anything moves. Small payloads travel with that check; large ones are
/// read where they are when they are in shared memory, else streamed through chunks that stay in the caches. Each
/// element is reduced by one rank, in the order of ranks: same inputs, same bits, on every rank and every run.
///
/// Thread: one caller; Lockstep::breakGroup() from any thread.
/// Errors: FAILED_PRECONDITION on all ranks, naming ranks, both calls and the sequence, when calls differ (the group is
///   then broken); the status of a rank that called fail() (the group stays usable); those of Lockstep::awaitAll().
class Exchange {
 public:
  /// `watches` as Lockstep's; they tell the backend: without any, all ranks are threads of this process.
  Exchange(Arena arena, int self, std::vector<ProcessWatch> watches, std::shared_ptr<PeerMemory> memory,
           std::chrono::milliseconds timeout);

  int self() const { return self_; }
  int size() const { return arena_.size(); }
  GroupBackend backend() const { return backend_; }
  Lockstep& lockstep() { return lockstep_; }
  const Lockstep& lockstep() const { return lockstep_; }
  void setTimeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }

  absl::Status barrier(const Call& call);
  /// Sends `outgoing` to all ranks; `incoming[r]` receives what rank r sent, and is empty for a rank that sends
  /// nothing.
  absl::Status spread(const Call& call, ConstRows outgoing, const std::vector<Rows>& incoming);
  /// Sends `outgoing[r]` to rank r; `incoming[r]` receives what rank r sent here. Sizes are checked pair by pair.
  absl::Status swap(const Call& call, const std::vector<ConstRows>& outgoing, const std::vector<Rows>& incoming);
  /// Combines all ranks' `outgoing[self]` into `out`. The sizes of outgoing are the same on all ranks.
  absl::Status reduceScatter(const Call& call, const std::vector<ConstRows>& outgoing, std::byte* out,
                             ReduceKernel kernel);
  /// Combines all ranks' `bytes` at `in` into `out`, which may be `in`. `root` >= 0: only that rank's `out` is written.
  absl::Status allReduce(const Call& call, const std::byte* in, std::byte* out, std::size_t bytes, ReduceKernel kernel,
                         int root);
  /// Takes part in the next call as a rank whose input could not be computed: every rank's call returns `why`.
  absl::Status fail(const absl::Status& why, const Call& call);

 private:
  /// Starts a call: fills this rank's slot, posts it, waits for all slots and compares them.
  absl::Status open(const Call& call, absl::Span<const ConstRows> parts, const std::vector<Rows>* incoming,
                    const std::byte* output = nullptr);
  absl::Status post(const Call& call);
  absl::Status compare(const Call& call);
  absl::Status stepTogether(const Call& call);
  /// Describes a part of this rank's, or its output; false: only ranks of this process reach it.
  bool describe(const std::byte* data, std::size_t bytes, BufferRef& buffer) const;
  bool isInline(int rank) const { return arena_.slot(rank, sequence_).isInline; }
  /// Whether everybody reads what `rank` sends where it is; then it does not stream it.
  bool isDirect(int rank) const { return !isInline(rank) && arena_.slot(rank, sequence_).isDirect; }
  bool isStreamed(int rank) const { return !isInline(rank) && !isDirect(rank); }
  bool anyDirect() const;
  bool allDirect() const;
  std::uint64_t largestStreamedPart() const;
  /// A peer's part for rank `to`, or output, where it is; a failure breaks the group.
  absl::StatusOr<const std::byte*> partOf(int rank, int to);
  absl::StatusOr<const std::byte*> mapped(int rank, const BufferRef& buffer);
  absl::Status reduceDirectly(const Call& call, const std::byte* in, std::byte* out, std::size_t bytes,
                              ReduceKernel kernel);

  Arena arena_;
  const int self_;
  const GroupBackend backend_;
  std::chrono::milliseconds timeout_;
  Lockstep::Deadline deadline_;
  std::uint64_t sequence_ = 0;
  Lockstep lockstep_;
  std::shared_ptr<PeerMemory> memory_;
  /// Keeps peers' segments mapped during a call.
  std::vector<std::shared_ptr<Segment>> held_;
};

}  // namespace dtorch
