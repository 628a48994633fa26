#include "client/cpp/operator_error.h"

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/status_payload.h"
#include "proto/codec.h"

namespace dtorch {
namespace {

constexpr char kPayloadUrl[] = "type.googleapis.com/dtorch.v1.Status";

}  // namespace

absl::Status statusFromError(const v1::Status& error) {
  const absl::Status plain = fromWire(error);
  if (plain.ok() || error.operator_name().empty()) return plain;
  const auto missing = [&plain](absl::string_view text) {
    return !text.empty() && !absl::StrContains(plain.message(), text);
  };
  std::string where;
  if (missing(error.operator_name())) where = error.operator_name();
  if (missing(error.site())) absl::StrAppend(&where, where.empty() ? "called at " : " called at ", error.site());
  const std::string rank = error.rank() > 0 ? absl::StrCat("rank ", error.rank() - 1) : "";
  if (missing(rank)) absl::StrAppend(&where, where.empty() ? "on " : " on ", rank);
  absl::Status status(plain.code(),
                      where.empty() ? std::string(plain.message()) : absl::StrCat(where, ": ", plain.message()));
  v1::Status payload = error;
  payload.clear_message();
  status.SetPayload(kPayloadUrl, absl::Cord(payload.SerializeAsString()));
  return status;
}

FailureKind failureKind(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kAborted:
      return FailureKind::kWorkerLost;
    case absl::StatusCode::kDataLoss:
      return FailureKind::kTensorLost;
    case absl::StatusCode::kDeadlineExceeded:
      return FailureKind::kDeadline;
    case absl::StatusCode::kCancelled:
      return FailureKind::kCancelled;
    case absl::StatusCode::kResourceExhausted:
      return FailureKind::kOverQuota;
    case absl::StatusCode::kUnavailable:
      return FailureKind::kUnavailable;
    default:
      return FailureKind::kOperatorFailed;
  }
}

std::optional<OperatorError> operatorError(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kPayloadUrl);
  v1::Status error;
  if (!payload || !error.ParseFromString(std::string(*payload))) return std::nullopt;
  return OperatorError{error.operator_name(), error.rank() > 0 ? std::optional<Rank>(error.rank() - 1) : std::nullopt,
                       error.site()};
}

}  // namespace dtorch
