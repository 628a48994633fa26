#include "worker/failure.h"

#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "comm/exchange/failure_cause.h"
#include "dtorch/v1/worker.pb.h"
#include "proto/codec.h"

namespace dtorch {

Failure::Failure(const std::string& what, const absl::Status& why, Rank failedRank)
    : status(why.code(), absl::StrCat(what, " failed on rank ", failedRank, ": ", why.message())), rank(failedRank) {}

Failure::Failure(absl::Status why, Rank failedRank, std::string name)
    : status(std::move(why)), rank(failedRank), operatorName(std::move(name)) {}

void Failure::toWire(v1::Status* out) const {
  dtorch::toWire(status, out);
  out->set_operator_name(operatorName);
  out->set_rank(rank + 1);
}

absl::Status Failure::forPeers() const {
  v1::OperatorFailed cause;
  cause.set_root(root);
  cause.set_site(site);
  cause.mutable_error()->set_operator_name(operatorName);
  cause.mutable_error()->set_rank(rank + 1);
  absl::Status result = status;
  result.SetPayload(kFailureCause, absl::Cord(cause.SerializeAsString()));
  return result;
}

std::shared_ptr<const Failure> Failure::ofPeer(const absl::Status& status) {
  const std::string bytes(status.GetPayload(kFailureCause).value_or(absl::Cord()));
  v1::OperatorFailed cause;
  if (bytes.empty() || !cause.ParseFromString(bytes)) return nullptr;
  auto failure = std::make_shared<Failure>(absl::Status(status.code(), status.message()), cause.error().rank() - 1,
                                           cause.error().operator_name());
  failure->root = cause.root();
  failure->site = cause.site();
  return failure;
}

}  // namespace dtorch
