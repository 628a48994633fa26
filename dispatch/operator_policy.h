#pragma once
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"

namespace dtorch {

/// Which operators a client may call: those of aten and dtorch, but for a list of those that read files or trust their
/// indices blindly, and those of operator libraries.
///
/// Thread: check() is safe.
class OperatorPolicy {
 public:
  OperatorPolicy() = default;
  /// `allowed` and `denied` are names without overload, "aten::from_file", or beginnings, "aten::_nested_*"; `library`
  /// are the names of the operators that operator libraries have brought. What is denied here is denied; what is
  /// allowed here is allowed whatever the list says.
  OperatorPolicy(std::vector<std::string> allowed, std::vector<std::string> denied, std::vector<std::string> library);

  /// OK, or PERMISSION_DENIED saying why no client may call operator `name`.
  absl::Status check(const std::string& name) const;
  bool isOfLibrary(const std::string& name) const { return library_.contains(name.substr(0, name.find('.'))); }

 private:
  std::vector<std::string> allowed_;
  std::vector<std::string> denied_;
  absl::flat_hash_set<std::string> library_;
};

}  // namespace dtorch
