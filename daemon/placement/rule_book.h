#pragma once
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace dtorch {

/// Placement rules of operators that are not LibTorch's, in the notation of notation.h: those that operator libraries
/// bring are one book, the daemon's; each session writes its own into another one on top of it.
///
/// Thread: one that is written to before threads start is safe to read; a session's is the controller loop's.
class RuleBook {
 public:
  /// `below`: where a rule is looked for that is not here; must outlive this book.
  explicit RuleBook(const RuleBook* below = nullptr) : below_(below) {}

  /// A rule for the operator `name`, in place of one that it had here. INVALID_ARGUMENT: the notation is not
  /// understood, or has more terms than the operator has tensors.
  absl::Status add(const std::string& name, absl::string_view notation);
  /// One rule a line: "mylib::op: b m k, k n -> b m n; k:sum"; lines that begin with # are comments. INVALID_ARGUMENT
  /// quotes the line that is not understood.
  absl::Status addLines(absl::string_view lines);

  /// The notation for exactly this name, with or without overload; null: there is none.
  const std::string* find(const std::string& name) const;
  bool has(const std::string& name) const { return rules_.contains(name); }
  std::size_t size() const { return rules_.size(); }
  /// The operators that have a rule here and none below.
  std::vector<std::string> added() const;
  /// Whether calls of `name` may be placed by a rule of this very book, not of the one below: they are not planned for
  /// others.
  bool isFor(absl::string_view name) const { return !rules_.empty() && !absl::StartsWith(name, "aten::"); }

 private:
  const RuleBook* below_;
  std::map<std::string, std::string> rules_;
};

}  // namespace dtorch
