#include "daemon/placement/rule_book.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "daemon/placement/notation.h"
#include "dispatch/prepared_call.h"

namespace dtorch {

absl::Status RuleBook::add(const std::string& name, absl::string_view notation) {
  if (absl::Status status = checkNotation(notation); !status.ok()) return status;
  if (const absl::StatusOr<c10::OperatorHandle> op = findOperator(name); op.ok()) {
    if (absl::Status status = checkTerms(notation, op->schema()); !status.ok()) return status;
  }
  rules_[name] = std::string(notation);
  return absl::OkStatus();
}

absl::Status RuleBook::addLines(absl::string_view lines) {
  for (const absl::string_view line : absl::StrSplit(lines, '\n')) {
    const absl::string_view text = absl::StripAsciiWhitespace(line);
    if (text.empty() || absl::StartsWith(text, "#")) continue;
    const std::size_t scope = text.find("::");
    const std::size_t colon = scope == absl::string_view::npos ? scope : text.find(':', scope + 2);
    if (colon == absl::string_view::npos) {
      return absl::InvalidArgumentError(absl::StrCat("not 'namespace::operator: rule': '", text, "'"));
    }
    const std::string name(absl::StripAsciiWhitespace(text.substr(0, colon)));
    if (absl::Status status = add(name, absl::StripAsciiWhitespace(text.substr(colon + 1))); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat(name, ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

std::vector<std::string> RuleBook::added() const {
  std::vector<std::string> names;
  for (const auto& [name, notation] : rules_) {
    if (below_ == nullptr || below_->find(name) == nullptr) names.push_back(name);
  }
  return names;
}

const std::string* RuleBook::find(const std::string& name) const {
  if (const auto it = rules_.find(name); it != rules_.end()) return &it->second;
  return below_ == nullptr ? nullptr : below_->find(name);
}

}  // namespace dtorch
