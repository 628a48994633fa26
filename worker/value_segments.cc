#include "worker/value_segments.h"

#include "comm/store/shared_allocator.h"

namespace dtorch {

std::optional<ValueTicket> ValueSegments::keep(FutureId future, SessionId session, const TensorMeta& meta,
                                               std::shared_ptr<Segment> segment, std::shared_ptr<const void> holder) {
  std::optional<ValueTicket> ticket;
  if (server_ != nullptr) {
    auto value = std::make_shared<Snapshot>();
    value->dtype = meta.dtype;
    value->shape = meta.shape;
    value->segment = segment;
    ticket = server_->announce();
    if (!server_->resolve(ticket->id, std::move(value)).ok()) ticket.reset();
  }
  const absl::MutexLock lock(&mutex_);
  kept_.insert_or_assign(future, Kept{session, std::move(segment), ticket ? ticket->id : 0, std::move(holder)});
  return ticket;
}

void ValueSegments::drop(FutureId future) {
  Kept kept;
  {
    const absl::MutexLock lock(&mutex_);
    const auto found = kept_.find(future);
    if (found == kept_.end()) return;
    kept = std::move(found->second);
    kept_.erase(found);
    // With the lock, as forget() has it: the pool gets nothing of a session that it has forgotten.
    if (kept.session && kept.holder == nullptr) pool_.give(*kept.session, std::move(kept.segment));
  }
  if (server_ != nullptr && kept.ticket != 0) server_->withdraw(kept.ticket);
}

absl::StatusOr<std::shared_ptr<Segment>> ValueSegments::map(SessionId session, const SegmentRef& ref) {
  std::shared_ptr<MappedSegments> mapped;
  {
    const absl::MutexLock lock(&mutex_);
    std::shared_ptr<MappedSegments>& known = mapped_[session];
    if (known == nullptr) known = std::make_shared<MappedSegments>(kMappings, kIdleBytes);
    mapped = known;
  }
  return mapped->map(ref);
}

void ValueSegments::forget(SessionId session) {
  const absl::MutexLock lock(&mutex_);
  mapped_.erase(session);
  for (auto& [future, kept] : kept_) {
    if (kept.session == session) kept.session.reset();
  }
  pool_.forget(session);
  forgetTensorOwner(session);
}

}  // namespace dtorch
