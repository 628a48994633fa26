#include "dispatch/operator_library.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <dlfcn.h>

#include <exception>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dispatch/own_operators.h"

namespace dtorch {
namespace {

std::set<std::string> operatorNames() {
  std::set<std::string> names;
  for (const c10::OperatorName& op : c10::Dispatcher::singleton().getAllOpNames()) names.insert(op.name);
  return names;
}

}  // namespace

absl::StatusOr<OperatorLibrary> loadOperatorLibrary(const std::string& path) {
  registerOwnOperators();
  const std::set<std::string> before = operatorNames();
  void* library = nullptr;
  try {
    library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("operator library ", path, ": ", error.what()));
  }
  if (library == nullptr) return absl::InvalidArgumentError(absl::StrCat("operator library ", path, ": ", ::dlerror()));
  OperatorLibrary loaded;
  for (const std::string& name : operatorNames()) {
    if (!before.contains(name)) loaded.operators.push_back(name);
  }
  using PlacementRules = const char* (*)();
  if (const auto rules = reinterpret_cast<PlacementRules>(::dlsym(library, "dtorch_placement_rules"))) {
    loaded.placementRules = rules();
  }
  return loaded;
}

}  // namespace dtorch
