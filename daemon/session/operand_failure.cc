#include "daemon/session/operand_failure.h"

#include "absl/strings/str_cat.h"
#include "proto/codec.h"

namespace dtorch {

void toWire(const OperandFailure& failure, v1::Status* out) {
  // What comes from a worker names operator and rank already.
  std::string text = failure.rank < 0 ? failure.operatorName : std::string();
  if (!failure.site.empty()) absl::StrAppend(&text, text.empty() ? "" : " ", "at ", failure.site);
  absl::StrAppend(&text, text.empty() ? "" : ": ", failure.status.message());
  toWire(absl::Status(failure.status.code(), text), out);
  out->set_operator_name(printable(failure.operatorName, 256));
  out->set_site(printable(failure.site, 1024));
  out->set_rank(failure.rank + 1);
}

}  // namespace dtorch
