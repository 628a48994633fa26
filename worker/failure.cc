#include "worker/failure.h"

#include "absl/strings/str_cat.h"
#include "proto/codec.h"

namespace dtorch {

Failure::Failure(const std::string& what, const absl::Status& why, Rank failedRank)
    : status(why.code(), absl::StrCat(what, " failed on rank ", failedRank, ": ", why.message())), rank(failedRank) {}

void Failure::toWire(v1::Status* out) const {
  dtorch::toWire(status, out);
  out->set_operator_name(operatorName);
  out->set_rank(rank + 1);
}

}  // namespace dtorch
