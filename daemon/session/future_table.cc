#include "daemon/session/future_table.h"

#include <algorithm>
#include <utility>

#include "proto/codec.h"
#include "proto/segment_codec.h"

namespace dtorch {
namespace {

constexpr std::size_t kChunkBytes = 1u << 20;
// Held back while the client has this much to read: bounds what a slow reader keeps in the daemon.
constexpr std::size_t kQueueBytes = 8u << 20;

}  // namespace

FutureId FutureTable::await(SessionId session, std::shared_ptr<SessionChannel> channel, FutureId clientFuture,
                            GroupId group, OperandId operand) {
  const FutureId fetch = next_++;
  pending_[fetch] = {session, std::move(channel), clientFuture, group, operand};
  return fetch;
}

OperandId FutureTable::operandOf(FutureId fetch) const {
  const auto it = pending_.find(fetch);
  return it == pending_.end() ? 0 : it->second.operand;
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
  Pending pending = std::move(it->second);
  pending_.erase(it);
  if (failure == nullptr && value.has_error()) {
    failure = std::make_shared<OperandFailure>(OperandFailure{fromWire(value.error()), value.error().operator_name(),
                                                              value.error().rank() - 1, value.error().site()});
  }
  Segment segment;
  if (failure == nullptr && value.has_segment()) {
    absl::StatusOr<Segment> opened = Segment::open(fromWire(value.segment()));
    if (opened.ok()) {
      segment = *std::move(opened);
    } else {
      failure = std::make_shared<OperandFailure>(OperandFailure{opened.status(), "", rank, ""});
    }
  }
  if (failure != nullptr) {
    if (value.has_segment()) release(rank, value.future());
    sendError(pending.channel.get(), pending.clientFuture, failure.get());
    return;
  }
  if (value.has_segment()) {
    std::deque<Transfer>& transfers = transfers_[pending.session];
    const SessionId session = pending.session;
    transfers.push_back({std::move(pending), rank, value.future(), std::move(segment), value.meta(), 0});
    continueTransfers(session);
    return;
  }
  auto message = std::make_shared<v1::DaemonMessage>();
  v1::FutureResult* result = message->mutable_result();
  result->set_future(pending.clientFuture);
  *result->mutable_meta() = value.meta();
  result->set_data(value.inline_bytes());
  result->set_done(true);
  pending.channel->send(std::move(message));
}

bool FutureTable::advance(Transfer* transfer) {
  const std::uint64_t total = transfer->segment.size();
  while (transfer->pending.channel->queuedBytes() < kQueueBytes) {
    const std::uint64_t bytes = std::min<std::uint64_t>(kChunkBytes, total - transfer->offset);
    auto message = std::make_shared<v1::DaemonMessage>();
    v1::FutureResult* result = message->mutable_result();
    result->set_future(transfer->pending.clientFuture);
    if (transfer->offset == 0) *result->mutable_meta() = transfer->meta;
    result->set_offset(transfer->offset);
    result->set_data(transfer->segment.data() + transfer->offset, bytes);
    transfer->offset += bytes;
    result->set_done(transfer->offset == total);
    transfer->pending.channel->send(std::move(message));
    if (transfer->offset == total) return true;
  }
  return false;
}

void FutureTable::continueTransfers(SessionId session) {
  const auto it = transfers_.find(session);
  if (it == transfers_.end()) return;
  std::deque<Transfer>& transfers = it->second;
  while (!transfers.empty() && advance(&transfers.front())) {
    release(transfers.front().rank, transfers.front().fetch);
    transfers.pop_front();
  }
  if (transfers.empty()) transfers_.erase(it);
}

void FutureTable::cancel(SessionId session, FutureId clientFuture) {
  for (auto it = pending_.begin(); it != pending_.end();) {
    const auto current = it++;
    if (current->second.session == session && current->second.clientFuture == clientFuture) pending_.erase(current);
  }
  const auto found = transfers_.find(session);
  if (found == transfers_.end()) return;
  for (auto it = found->second.begin(); it != found->second.end();) {
    if (it->pending.clientFuture == clientFuture) {
      release(it->rank, it->fetch);
      it = found->second.erase(it);
    } else {
      ++it;
    }
  }
}

void FutureTable::failBrokenGroups(Rank rank) {
  for (auto it = pending_.begin(); it != pending_.end();) {
    const auto current = it++;
    const absl::Status& error = executor_->error(current->second.group);
    if (error.ok()) continue;
    OperandFailure failure{error, "", rank, ""};
    sendError(current->second.channel.get(), current->second.clientFuture, &failure);
    pending_.erase(current);
  }
}

void FutureTable::dropSession(SessionId session) {
  for (auto it = pending_.begin(); it != pending_.end();) {
    const auto current = it++;
    if (current->second.session == session) pending_.erase(current);
  }
  const auto found = transfers_.find(session);
  if (found == transfers_.end()) return;
  for (const Transfer& transfer : found->second) release(transfer.rank, transfer.fetch);
  transfers_.erase(found);
}

std::size_t FutureTable::pendingOf(SessionId session) const {
  std::size_t count = 0;
  for (const auto& [fetch, pending] : pending_) count += pending.session == session ? 1 : 0;
  const auto it = transfers_.find(session);
  return count + (it == transfers_.end() ? 0 : it->second.size());
}

}  // namespace dtorch
