#include "daemon/session/future_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/codec.h"
#include "proto/segment_codec.h"

namespace dtorch {
namespace {

constexpr std::size_t kChunkBytes = 1u << 20;
// Held back while the client has this much to read: bounds what a slow reader keeps in the daemon.
constexpr std::size_t kQueueBytes = 8u << 20;
// Of a session, in the workers' memory: what goes beyond is sent on. One value may be larger.
constexpr std::uint64_t kMaxLentBytes = 1u << 30;

}  // namespace

FutureId FutureTable::await(SessionId session, std::shared_ptr<SessionChannel> channel, FutureId clientFuture,
                            GroupId group, OperandId operand, std::uint64_t bytes, bool byTicket) {
  const FutureId fetch = next_++;
  pending_[fetch] = {session, std::move(channel),        clientFuture, group,
                     operand, executor_->lastOperator(), bytes,        byTicket};
  Waiting& waiting = waiting_[session];
  waiting.fetches[clientFuture] = fetch;
  waiting.bytes += bytes;
  return fetch;
}

bool FutureTable::awaits(SessionId session, FutureId clientFuture) const {
  const auto it = waiting_.find(session);
  if (it == waiting_.end()) return false;
  const std::deque<Transfer>& transfers = it->second.transfers;
  return it->second.fetches.contains(clientFuture) || it->second.lent.contains(clientFuture) ||
         std::any_of(transfers.begin(), transfers.end(),
                     [&](const Transfer& transfer) { return transfer.value.pending.clientFuture == clientFuture; });
}

std::uint64_t FutureTable::openBytes(SessionId session) const {
  const auto it = waiting_.find(session);
  return it == waiting_.end() ? 0 : it->second.bytes;
}

FutureTable::Pending FutureTable::take(absl::flat_hash_map<FutureId, Pending>::iterator it) {
  Pending pending = std::move(it->second);
  pending_.erase(it);
  waiting_[pending.session].fetches.erase(pending.clientFuture);
  return pending;
}

void FutureTable::close(SessionId session, std::uint64_t bytes) {
  const auto it = waiting_.find(session);
  if (it == waiting_.end()) return;
  it->second.bytes -= bytes;
  if (it->second.fetches.empty() && it->second.transfers.empty() && it->second.lent.empty()) waiting_.erase(it);
}

FutureTable::Fetched FutureTable::fetched(FutureId fetch) const {
  const auto it = pending_.find(fetch);
  return it == pending_.end() ? Fetched() : Fetched{it->second.operand, it->second.behind};
}

void FutureTable::sendError(SessionChannel* channel, FutureId clientFuture, OperandFailure* failure) {
  failure->observed = true;
  auto message = std::make_shared<v1::DaemonMessage>();
  v1::FutureResult* result = message->mutable_result();
  result->set_future(clientFuture);
  toWire(*failure, result->mutable_error());
  result->set_done(true);
  channel->send(std::move(message));
}

void FutureTable::release(Rank rank, FutureId fetch) {
  v1::WorkerCommand command;
  command.mutable_value_taken()->set_future(fetch);
  executor_->sendToWorker(rank, command);
}

void FutureTable::resolve(Rank rank, const v1::FetchedValue& value, OperandFailurePtr failure) {
  const auto it = pending_.find(value.future());
  if (it == pending_.end()) {
    if (value.has_segment()) release(rank, value.future());
    return;
  }
  Pending pending = take(it);
  if (failure == nullptr && value.has_error()) {
    failure = std::make_shared<OperandFailure>(OperandFailure{fromWire(value.error()), value.error().operator_name(),
                                                              value.error().rank() - 1, value.error().site()});
  }
  absl::StatusOr<TensorMeta> meta = fromWire(value.meta());
  if (failure == nullptr && !meta.ok()) {
    failure = std::make_shared<OperandFailure>(OperandFailure{meta.status(), "", rank, ""});
  }
  if (failure != nullptr) {
    if (value.has_segment()) release(rank, value.future());
    close(pending.session, pending.bytes);
    sendError(pending.channel.get(), pending.clientFuture, failure.get());
    return;
  }
  if (value.has_segment()) {
    LargeValue large{std::move(pending),
                     rank,
                     value.future(),
                     fromWire(value.segment()),
                     value.meta(),
                     absl::OkStatus(),
                     static_cast<std::uint64_t>(meta->bytes())};
    const std::uint64_t lent = waiting_[large.pending.session].lentBytes;
    if (large.pending.byTicket && value.has_ticket() && (lent == 0 || lent + large.bytes <= kMaxLentBytes)) {
      lend(std::move(large), value.ticket());
    } else {
      transfer(std::move(large));
    }
    return;
  }
  close(pending.session, pending.bytes);
  auto message = std::make_shared<v1::DaemonMessage>();
  v1::FutureResult* result = message->mutable_result();
  result->set_future(pending.clientFuture);
  *result->mutable_meta() = value.meta();
  result->set_data(value.inline_bytes());
  result->set_done(true);
  pending.channel->send(std::move(message));
}

void FutureTable::lend(LargeValue value, const v1::ValueTicket& ticket) {
  const Pending& pending = value.pending;
  auto message = std::make_shared<v1::DaemonMessage>();
  v1::FutureResult* result = message->mutable_result();
  result->set_future(pending.clientFuture);
  *result->mutable_ticket() = ticket;
  result->set_done(true);
  pending.channel->send(std::move(message));
  const SessionId session = pending.session;
  const std::uint64_t bytes = pending.bytes;
  Waiting& waiting = waiting_[session];
  waiting.lentBytes += value.bytes;
  waiting.lent.emplace(pending.clientFuture, std::move(value));
  close(session, bytes);
}

void FutureTable::transfer(LargeValue value) {
  absl::StatusOr<Segment> segment = value.lost.ok() ? Segment::open(value.segment) : value.lost;
  if (segment.ok() && segment->size() < value.bytes) segment = absl::InternalError("a value exceeds its segment");
  const SessionId session = value.pending.session;
  if (!segment.ok()) {
    OperandFailure failure{segment.status(), "", value.rank, ""};
    release(value);
    close(session, value.pending.bytes);
    return sendError(value.pending.channel.get(), value.pending.clientFuture, &failure);
  }
  waiting_[session].transfers.push_back({std::move(value), *std::move(segment), 0});
  continueTransfers(session);
}

void FutureTable::stream(SessionId session, FutureId clientFuture) {
  const auto it = waiting_.find(session);
  if (it == waiting_.end()) return;
  const auto found = it->second.lent.find(clientFuture);
  if (found == it->second.lent.end()) return;
  LargeValue value = std::move(found->second);
  it->second.lent.erase(found);
  it->second.lentBytes -= value.bytes;
  it->second.bytes += value.pending.bytes;  // open again
  transfer(std::move(value));
}

bool FutureTable::advance(Transfer* transfer) {
  const std::uint64_t total = transfer->value.bytes;
  const Pending& pending = transfer->value.pending;
  while (pending.channel->queuedBytes() < kQueueBytes) {
    const std::uint64_t bytes = std::min<std::uint64_t>(kChunkBytes, total - transfer->offset);
    auto message = std::make_shared<v1::DaemonMessage>();
    v1::FutureResult* result = message->mutable_result();
    result->set_future(pending.clientFuture);
    if (transfer->offset == 0) *result->mutable_meta() = transfer->value.meta;
    result->set_offset(transfer->offset);
    result->set_data(transfer->segment.data() + transfer->offset, bytes);
    transfer->offset += bytes;
    result->set_done(transfer->offset == total);
    pending.channel->send(std::move(message));
    if (transfer->offset == total) return true;
  }
  return false;
}

void FutureTable::continueTransfers(SessionId session) {
  const auto it = waiting_.find(session);
  if (it == waiting_.end()) return;
  std::deque<Transfer>& transfers = it->second.transfers;
  std::uint64_t sent = 0;
  while (!transfers.empty() && advance(&transfers.front())) {
    release(transfers.front().value);
    sent += transfers.front().value.pending.bytes;
    transfers.pop_front();
  }
  close(session, sent);
}

void FutureTable::cancel(SessionId session, FutureId clientFuture) {
  const auto it = waiting_.find(session);
  if (it == waiting_.end()) return;
  Waiting& waiting = it->second;
  std::uint64_t cancelled = 0;
  if (const auto fetch = waiting.fetches.find(clientFuture); fetch != waiting.fetches.end()) {
    cancelled += take(pending_.find(fetch->second)).bytes;
  }
  for (auto transfer = waiting.transfers.begin(); transfer != waiting.transfers.end();) {
    if (transfer->value.pending.clientFuture != clientFuture) {
      ++transfer;
      continue;
    }
    release(transfer->value);
    cancelled += transfer->value.pending.bytes;
    transfer = waiting.transfers.erase(transfer);
  }
  if (const auto lent = waiting.lent.find(clientFuture); lent != waiting.lent.end()) {
    release(lent->second);
    waiting.lentBytes -= lent->second.bytes;
    waiting.lent.erase(lent);
  }
  close(session, cancelled);
}

template <typename FailureOf>
void FutureTable::failPending(FailureOf failureOf) {
  for (auto it = pending_.begin(); it != pending_.end();) {
    const auto current = it++;
    OperandFailure* failure = failureOf(current->second);
    if (failure == nullptr) continue;
    const Pending pending = take(current);
    close(pending.session, pending.bytes);
    sendError(pending.channel.get(), pending.clientFuture, failure);
  }
}

void FutureTable::failOperands(SessionId session, const EndedOperands& operands) {
  failPending([&](const Pending& pending) -> OperandFailure* {
    const auto it = pending.session == session ? operands.find(pending.operand) : operands.end();
    return it != operands.end() && pending.behind >= it->second.since ? it->second.failure.get() : nullptr;
  });
}

void FutureTable::failAll(SessionId session, OperandFailure* failure) {
  failPending([&](const Pending& pending) { return pending.session == session ? failure : nullptr; });
}

absl::flat_hash_set<SessionId> FutureTable::failBrokenGroups(Rank rank, const absl::Status& why) {
  absl::flat_hash_set<SessionId> told;
  OperandFailure failure;
  failPending([&](const Pending& pending) -> OperandFailure* {
    const absl::Status& error = executor_->error(pending.group);
    if (error.ok()) return nullptr;
    failure = {error, "get", rank, ""};
    told.insert(pending.session);
    return &failure;
  });
  // A client may have been told of them and not been there yet.
  for (auto& [session, waiting] : waiting_) {
    for (auto& [future, value] : waiting.lent) {
      if (value.rank == rank)
        value.lost = absl::Status(kTensorLost, absl::StrCat("the value is lost: ", why.message()));
    }
  }
  return told;
}

void FutureTable::dropSession(SessionId session) {
  const auto found = waiting_.find(session);
  if (found == waiting_.end()) return;
  for (const auto& [clientFuture, fetch] : found->second.fetches) pending_.erase(fetch);
  for (const Transfer& transfer : found->second.transfers) release(transfer.value);
  for (const auto& [clientFuture, value] : found->second.lent) release(value);
  waiting_.erase(found);
}

std::size_t FutureTable::pendingOf(SessionId session) const {
  const auto it = waiting_.find(session);
  return it == waiting_.end() ? 0 : it->second.fetches.size() + it->second.transfers.size();
}

}  // namespace dtorch
