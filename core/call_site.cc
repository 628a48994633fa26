#include "core/call_site.h"

#include "absl/strings/str_cat.h"

namespace dtorch {

std::string CallSite::toString() const { return file.empty() ? std::string() : absl::StrCat(file, ":", line); }

}  // namespace dtorch
