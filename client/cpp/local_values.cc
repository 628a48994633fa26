#include "client/cpp/local_values.h"

#include <utility>

namespace dtorch {

void LocalValues::fetch(FutureId future, const v1::ValueTicket& ticket) {
  std::unique_ptr<ValueClient>& worker = workers_[ticket.path()];
  if (worker == nullptr || worker->ended()) {
    auto connected = ValueClient::connect(ticket.path(), mapped_);
    if (!connected.ok()) {
      if (!reached_) core_->useTickets(false);  // another user's daemon, not a worker that is being restarted
      return core_->onValue(future, connected.status());
    }
    worker = *std::move(connected);
    reached_ = true;
  }
  worker->fetch(ticket.id(), [core = core_, future](const SnapshotOr& value) { core->onValue(future, value); });
}

}  // namespace dtorch
