#include "comm/exchange/exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "shm/bulk_copy.h"

#define DTORCH_RETURN_IF_ERROR(expression) \
  if (absl::Status status_ = (expression); !status_.ok()) return status_

namespace dtorch {
namespace {

/// How many of `bytes` lie in the window of `window` bytes at `offset`.
std::size_t within(std::size_t bytes, std::size_t offset, std::size_t window) {
  return bytes > offset ? std::min(bytes - offset, window) : 0;
}

GroupBackend backendOf(const std::vector<ProcessWatch>& watches) {
  const bool oneProcess =
      std::all_of(watches.begin(), watches.end(), [](const auto& watch) { return watch.pid() == 0; });
  return oneProcess ? GroupBackend::kMemory : GroupBackend::kFile;
}

}  // namespace

Exchange::Exchange(Arena arena, int self, std::vector<ProcessWatch> watches, std::shared_ptr<PeerMemory> memory,
                   std::chrono::milliseconds timeout)
    : arena_(arena),
      self_(self),
      backend_(backendOf(watches)),
      timeout_(timeout),
      lockstep_(arena, self, std::move(watches)),
      memory_(std::move(memory)) {}

absl::Status Exchange::open(const Call& call, absl::Span<const ConstRows> parts, const std::vector<Rows>* incoming,
                            const std::byte* output) {
  DTORCH_RETURN_IF_ERROR(lockstep_.broken());
  CallSlot& slot = arena_.slot(self_, ++sequence_);
  std::size_t total = 0;
  std::size_t largest = 0;
  for (const ConstRows& part : parts) {
    total += part.bytes();
    largest = std::max(largest, part.bytes());
  }
  slot.isInline = total <= arena_.inlineBytes();
  slot.largestPart = slot.isInline ? 0 : largest;
  slot.failCode = 0;
  slot.isDirect = true;
  held_.clear();
  if (!slot.isInline) {
    BufferRef* refs = arena_.parts(self_, sequence_);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const ConstRows& part = parts[i];
      const std::size_t span = part.bytes() == 0 ? 0 : (part.rows - 1) * part.pitch + part.rowBytes;
      if (!describe(part.base, span, refs[i])) slot.isDirect = false;
    }
    if (output != nullptr && !describe(output, total, slot.output)) slot.isDirect = false;
  }
  if (slot.isInline) {
    std::byte* to = arena_.inlineData(self_, sequence_);
    for (const ConstRows& part : parts) {
      readRows(part, 0, to, part.bytes());
      to += part.bytes();
    }
  }
  if (incoming != nullptr) {
    for (std::size_t r = 0; r < parts.size(); ++r) {
      arena_.sendBytes(self_, sequence_)[r] = parts[r].bytes();
      arena_.receiveBytes(self_, sequence_)[r] = (*incoming)[r].bytes();
    }
  }
  return post(call);
}

absl::Status Exchange::post(const Call& call) {
  CallSlot& slot = arena_.slot(self_, sequence_);
  slot.sequence = sequence_;
  slot.call = call;
  deadline_ = std::chrono::steady_clock::now() + timeout_;
  DTORCH_RETURN_IF_ERROR(stepTogether(call));
  const absl::Status same = compare(call);
  if (absl::IsFailedPrecondition(same)) {
    lockstep_.breakGroup(same);
    return same;
  }
  for (int r = 0; r < size(); ++r) {
    const CallSlot& theirs = arena_.slot(r, sequence_);
    if (theirs.failCode != 0) {
      absl::Status why(static_cast<absl::StatusCode>(theirs.failCode),
                       absl::string_view(theirs.failText.data(), theirs.failTextBytes));
      const absl::string_view cause(theirs.failCause.data(), theirs.failCauseBytes);
      if (!cause.empty()) why.SetPayload(kFailureCause, absl::Cord(cause));
      return why;
    }
  }
  return absl::OkStatus();
}

absl::Status Exchange::stepTogether(const Call& call) {
  lockstep_.step();
  return lockstep_.awaitAll(deadline_, call);
}

absl::Status Exchange::compare(const Call& call) {
  const auto differ = [this](int a, int b) {
    return absl::FailedPreconditionError(
        absl::StrCat("ranks make different calls at sequence ", sequence_, " of their group: rank ", arena_.rankAt(a),
                     " calls ", arena_.slot(a, sequence_).call.toString(), ", rank ", arena_.rankAt(b), " calls ",
                     arena_.slot(b, sequence_).call.toString(), "; the group is unusable until it is rebuilt"));
  };
  // Every rank looks at the same slots in the same order, so that all come to the same verdict.
  int first = -1;
  for (int r = 0; r < size(); ++r) {
    const CallSlot& slot = arena_.slot(r, sequence_);
    const CallSlot& zero = arena_.slot(0, sequence_);
    if (slot.call.operatorNumber != zero.call.operatorNumber) return differ(0, r);
    if (slot.failCode != 0) continue;
    if (first < 0) first = r;
    if (!(slot.call == arena_.slot(first, sequence_).call)) return differ(first, r);
  }
  const bool pairwise =
      call.kind == CallKind::kAllToAll || call.kind == CallKind::kGather || call.kind == CallKind::kScatter;
  for (int from = 0; pairwise && from < size(); ++from) {
    for (int to = 0; to < size(); ++to) {
      if (arena_.slot(from, sequence_).failCode != 0 || arena_.slot(to, sequence_).failCode != 0) continue;
      const std::uint64_t sent = arena_.sendBytes(from, sequence_)[to];
      const std::uint64_t expected = arena_.receiveBytes(to, sequence_)[from];
      if (sent == expected) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("rank ", arena_.rankAt(from), " sends ", sent, " bytes to rank ", arena_.rankAt(to),
                       ", which expects ", expected, ", in ", arena_.slot(from, sequence_).call.toString(),
                       " at sequence ", sequence_, " of their group; the group is unusable until it is rebuilt"));
    }
  }
  return absl::OkStatus();
}

absl::Status Exchange::fail(const absl::Status& why, const Call& call) {
  DTORCH_RETURN_IF_ERROR(lockstep_.broken());
  CallSlot& slot = arena_.slot(self_, ++sequence_);
  slot.isInline = true;
  slot.largestPart = 0;
  slot.failCode = why.raw_code();
  slot.failTextBytes = static_cast<std::uint32_t>(std::min(why.message().size(), slot.failText.size()));
  std::memcpy(slot.failText.data(), why.message().data(), slot.failTextBytes);
  const std::string cause(why.GetPayload(kFailureCause).value_or(absl::Cord()));
  slot.failCauseBytes = cause.size() > slot.failCause.size() ? 0 : static_cast<std::uint32_t>(cause.size());
  std::memcpy(slot.failCause.data(), cause.data(), slot.failCauseBytes);
  return post(call);
}

absl::Status Exchange::barrier(const Call& call) { return open(call, {}, nullptr); }

bool Exchange::describe(const std::byte* data, std::size_t bytes, BufferRef& buffer) const {
  buffer = bytes == 0                          ? BufferRef{}
           : backend_ == GroupBackend::kMemory ? memory_->describeHere(data)
                                               : memory_->describe(data, bytes);
  return bytes == 0 || backend_ == GroupBackend::kMemory || buffer.isShared();
}

bool Exchange::allDirect() const {
  for (int r = 0; r < size(); ++r) {
    if (!isDirect(r)) return false;
  }
  return true;
}

bool Exchange::anyDirect() const {
  for (int r = 0; r < size(); ++r) {
    if (isDirect(r)) return true;
  }
  return false;
}

std::uint64_t Exchange::largestStreamedPart() const {
  std::uint64_t largest = 0;
  for (int r = 0; r < size(); ++r) {
    if (isStreamed(r)) largest = std::max(largest, arena_.slot(r, sequence_).largestPart);
  }
  return largest;
}

absl::StatusOr<const std::byte*> Exchange::partOf(int rank, int to) {
  return mapped(rank, arena_.parts(rank, sequence_)[to]);
}

absl::StatusOr<const std::byte*> Exchange::mapped(int rank, const BufferRef& buffer) {
  auto access = memory_->open(buffer);
  if (!access.ok()) {
    const absl::Status why =
        absl::UnavailableError(absl::StrCat("rank ", arena_.rankAt(self_), " cannot reach memory of rank ",
                                            arena_.rankAt(rank), ": ", access.status().message()));
    lockstep_.breakGroup(why);
    return why;
  }
  held_.push_back(std::move(access->segment));
  return access->data;
}

absl::Status Exchange::spread(const Call& call, ConstRows outgoing, const std::vector<Rows>& incoming) {
  DTORCH_RETURN_IF_ERROR(open(call, {outgoing}, nullptr));
  const auto self = static_cast<std::size_t>(self_);
  for (std::size_t r = 0; r < incoming.size(); ++r) {
    const int rank = static_cast<int>(r);
    if (incoming[r].bytes() == 0) continue;
    if (r == self) {
      copyRows(outgoing, incoming[r]);
    } else if (isInline(rank)) {
      writeRows(incoming[r], 0, arena_.inlineData(rank, sequence_), incoming[r].bytes());
    } else if (isDirect(rank)) {
      auto from = partOf(rank, 0);
      if (!from.ok()) return from.status();
      writeRows(incoming[r], 0, *from, incoming[r].bytes());
    }
  }
  const std::uint64_t largest = largestStreamedPart();
  const std::size_t window = arena_.chunkBytes();
  std::uint64_t turn = 0;
  for (std::size_t offset = 0; offset < largest; offset += window, ++turn) {
    if (isStreamed(self_))
      readRows(outgoing, offset, arena_.chunk(self_, turn), within(outgoing.bytes(), offset, window));
    // A rank overwrites a chunk two turns later, after all have taken the step between: they are done with it.
    DTORCH_RETURN_IF_ERROR(stepTogether(call));
    for (std::size_t r = 0; r < incoming.size(); ++r) {
      const int rank = static_cast<int>(r);
      if (r == self || !isStreamed(rank)) continue;
      writeRows(incoming[r], offset, arena_.chunk(rank, turn), within(incoming[r].bytes(), offset, window));
    }
  }
  // Whoever was read where it is may go on only when all have read it.
  return anyDirect() ? stepTogether(call) : absl::OkStatus();
}

absl::Status Exchange::swap(const Call& call, const std::vector<ConstRows>& outgoing,
                            const std::vector<Rows>& incoming) {
  DTORCH_RETURN_IF_ERROR(open(call, outgoing, &incoming));
  const auto self = static_cast<std::size_t>(self_);
  const auto ranks = incoming.size();
  for (std::size_t r = 0; r < ranks; ++r) {
    const int rank = static_cast<int>(r);
    if (incoming[r].bytes() == 0) continue;
    if (r == self) {
      copyRows(outgoing[r], incoming[r]);
    } else if (isDirect(rank)) {
      auto from = partOf(rank, self_);
      if (!from.ok()) return from.status();
      writeRows(incoming[r], 0, *from, incoming[r].bytes());
    } else if (isInline(rank)) {
      const std::uint64_t* sent = arena_.sendBytes(rank, sequence_);
      std::size_t before = 0;
      for (std::size_t i = 0; i < self; ++i) before += sent[i];
      writeRows(incoming[r], 0, arena_.inlineData(rank, sequence_) + before, incoming[r].bytes());
    }
  }
  const std::uint64_t largest = largestStreamedPart();
  const std::size_t window = arena_.chunkBytes() / ranks / 64 * 64;
  std::uint64_t turn = 0;
  for (std::size_t offset = 0; offset < largest; offset += window, ++turn) {
    for (std::size_t r = 0; r < ranks && isStreamed(self_); ++r) {
      if (r == self) continue;
      readRows(outgoing[r], offset, arena_.chunk(self_, turn) + r * window,
               within(outgoing[r].bytes(), offset, window));
    }
    DTORCH_RETURN_IF_ERROR(stepTogether(call));
    for (std::size_t r = 0; r < ranks; ++r) {
      const int rank = static_cast<int>(r);
      if (r == self || !isStreamed(rank)) continue;
      writeRows(incoming[r], offset, arena_.chunk(rank, turn) + self * window,
                within(incoming[r].bytes(), offset, window));
    }
  }
  return anyDirect() ? stepTogether(call) : absl::OkStatus();
}

absl::Status Exchange::reduceScatter(const Call& call, const std::vector<ConstRows>& outgoing, std::byte* out,
                                     ReduceKernel kernel) {
  DTORCH_RETURN_IF_ERROR(open(call, outgoing, nullptr));
  const auto self = static_cast<std::size_t>(self_);
  const auto ranks = outgoing.size();
  absl::InlinedVector<const std::byte*, 16> parts(ranks);
  if (isInline(self_)) {
    std::size_t before = 0;
    for (std::size_t r = 0; r < self; ++r) before += outgoing[r].bytes();
    for (std::size_t r = 0; r < ranks; ++r) parts[r] = arena_.inlineData(static_cast<int>(r), sequence_) + before;
    kernel.run(out, parts.data(), size(), outgoing[self].bytes() / kernel.elementBytes);
    return absl::OkStatus();
  }
  const ConstRows& own = outgoing[self];
  if (allDirect()) {
    // The parts for this rank lie alike on all ranks, whose shapes and lengths are equal.
    for (std::size_t r = 0; r < ranks && own.bytes() > 0; ++r) {
      auto part = partOf(static_cast<int>(r), self_);
      if (!part.ok()) return part.status();
      parts[r] = *part;
    }
    const bool oneRun = own.contiguous();
    const std::size_t runs = oneRun ? 1 : own.rows;
    const std::size_t runBytes = oneRun ? own.bytes() : own.rowBytes;
    for (std::size_t run = 0; run < runs && own.bytes() > 0; ++run) {
      kernel.run(out + run * runBytes, parts.data(), size(), runBytes / kernel.elementBytes);
      for (const std::byte*& part : parts) part += own.pitch;
    }
    return stepTogether(call);
  }
  std::uint64_t largest = 0;
  for (const ConstRows& part : outgoing) largest = std::max<std::uint64_t>(largest, part.bytes());
  const std::size_t window = arena_.chunkBytes() / ranks / 64 * 64;
  std::uint64_t turn = 0;
  for (std::size_t offset = 0; offset < largest; offset += window, ++turn) {
    for (std::size_t r = 0; r < ranks; ++r) {
      readRows(outgoing[r], offset, arena_.chunk(self_, turn) + r * window,
               within(outgoing[r].bytes(), offset, window));
    }
    DTORCH_RETURN_IF_ERROR(stepTogether(call));
    for (std::size_t r = 0; r < ranks; ++r) parts[r] = arena_.chunk(static_cast<int>(r), turn) + self * window;
    const std::size_t bytes = within(own.bytes(), offset, window);
    if (bytes > 0) kernel.run(out + offset, parts.data(), size(), bytes / kernel.elementBytes);
  }
  return absl::OkStatus();
}

absl::Status Exchange::reduceDirectly(const Call& call, const std::byte* in, std::byte* out, std::size_t bytes,
                                      ReduceKernel kernel) {
  const auto ranks = static_cast<std::size_t>(size());
  const std::size_t slice = (bytes + 64 * ranks - 1) / (64 * ranks) * 64;  // of whole cache lines, all of them enough
  const auto begin = [&](std::size_t r) { return std::min(bytes, r * slice); };
  const auto length = [&](std::size_t r) { return std::min(bytes, (r + 1) * slice) - begin(r); };
  const auto self = static_cast<std::size_t>(self_);
  absl::InlinedVector<const std::byte*, 16> parts(ranks);
  for (std::size_t r = 0; r < ranks; ++r) {
    auto part = r == self ? absl::StatusOr<const std::byte*>(in) : partOf(static_cast<int>(r), 0);
    if (!part.ok()) return part.status();
    parts[r] = *part + begin(self);
  }
  // Rank r combines slice r in its own output. When that is its input too, nobody else reads slice r of it.
  kernel.run(out + begin(self), parts.data(), size(), length(self) / kernel.elementBytes);
  DTORCH_RETURN_IF_ERROR(stepTogether(call));
  for (std::size_t r = 0; r < ranks; ++r) {
    if (r == self || length(r) == 0) continue;
    auto result = mapped(static_cast<int>(r), arena_.slot(static_cast<int>(r), sequence_).output);
    if (!result.ok()) return result.status();
    bulkCopy(out + begin(r), *result + begin(r), length(r));
  }
  return stepTogether(call);
}

absl::Status Exchange::allReduce(const Call& call, const std::byte* in, std::byte* out, std::size_t bytes,
                                 ReduceKernel kernel, int root) {
  DTORCH_RETURN_IF_ERROR(open(call, {contiguousRows(in, bytes)}, nullptr, root < 0 ? out : nullptr));
  const bool wanted = root < 0 || root == self_;
  const auto self = static_cast<std::size_t>(self_);
  const auto ranks = static_cast<std::size_t>(size());
  absl::InlinedVector<const std::byte*, 16> parts(ranks);
  if (isInline(self_)) {
    for (std::size_t r = 0; r < ranks; ++r) parts[r] = arena_.inlineData(static_cast<int>(r), sequence_);
    if (wanted && bytes > 0) kernel.run(out, parts.data(), size(), bytes / kernel.elementBytes);
    return absl::OkStatus();
  }
  if (root < 0 && allDirect()) return reduceDirectly(call, in, out, bytes, kernel);
  // Each window: rank r combines slice r of all ranks, then everybody copies the others' results. Chunk 0 carries what
  // others combine, chunk 1 results; a step of all ranks lies between any two uses of either.
  const std::size_t slice = arena_.chunkBytes() / ranks / 64 * 64;
  for (std::size_t offset = 0; offset < bytes; offset += slice * ranks) {
    const auto begin = [&](std::size_t r) { return offset + r * slice; };
    const auto length = [&](std::size_t r) { return within(bytes, begin(r), slice); };
    for (std::size_t r = 0; r < ranks; ++r) {
      if (r != self && length(r) > 0) std::memcpy(arena_.chunk(self_, 0) + r * slice, in + begin(r), length(r));
    }
    DTORCH_RETURN_IF_ERROR(stepTogether(call));
    for (std::size_t r = 0; r < ranks; ++r) parts[r] = arena_.chunk(static_cast<int>(r), 0) + self * slice;
    if (length(self) > 0) {
      parts[self] = in + begin(self);
      kernel.run(arena_.chunk(self_, 1), parts.data(), size(), length(self) / kernel.elementBytes);
    }
    DTORCH_RETURN_IF_ERROR(stepTogether(call));
    for (std::size_t r = 0; r < ranks && wanted; ++r) {
      if (length(r) > 0) std::memcpy(out + begin(r), arena_.chunk(static_cast<int>(r), 1), length(r));
    }
  }
  return absl::OkStatus();
}

}  // namespace dtorch
