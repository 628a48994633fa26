#include "daemon/session/operand_failure.h"

#include "absl/strings/str_cat.h"
#include "proto/codec.h"

namespace dtorch {

void toWire(const OperandFailure& failure, v1::Status* out) {
  std::string where = failure.operatorName;
  if (!failure.site.empty()) absl::StrAppend(&where, where.empty() ? "" : " ", "at ", failure.site);
  if (failure.rank >= 0) absl::StrAppend(&where, where.empty() ? "" : " ", "on rank ", failure.rank);
  toWire(absl::Status(failure.status.code(), absl::StrCat(where, where.empty() ? "" : ": ", failure.status.message())), out);
  out->set_operator_name(printable(failure.operatorName, 256));
  out->set_site(printable(failure.site, 1024));
  out->set_rank(failure.rank + 1);
}

}  // namespace dtorch
