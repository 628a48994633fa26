#include "client/torch/call_site.h"

#include <dlfcn.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"

namespace dtorch {
namespace {

// CPython's stable interface, found in the process that has it: this library serves every Python, and none.
struct Python {
  using Object = void;
  int (*isInitialized)() = nullptr;
  int (*ensure)() = nullptr;
  void (*release)(int) = nullptr;
  Object* (*currentFrame)() = nullptr;      // borrowed
  Object* (*frameBack)(Object*) = nullptr;  // owned, as all below
  Object* (*frameCode)(Object*) = nullptr;
  int (*frameLine)(Object*) = nullptr;
  Object* (*attribute)(Object*, const char*) = nullptr;
  const char* (*utf8)(Object*, std::ptrdiff_t*) = nullptr;
  void (*incref)(Object*) = nullptr;
  void (*decref)(Object*) = nullptr;
  void (*clearError)() = nullptr;
  bool isThere = false;

  Python() {
    isThere = find(isInitialized, "Py_IsInitialized") && find(ensure, "PyGILState_Ensure") &&
              find(release, "PyGILState_Release") && find(currentFrame, "PyEval_GetFrame") &&
              find(frameBack, "PyFrame_GetBack") && find(frameCode, "PyFrame_GetCode") &&
              find(frameLine, "PyFrame_GetLineNumber") && find(attribute, "PyObject_GetAttrString") &&
              find(utf8, "PyUnicode_AsUTF8AndSize") && find(incref, "Py_IncRef") && find(decref, "Py_DecRef") &&
              find(clearError, "PyErr_Clear");
  }
  template <typename Function>
  static bool find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(RTLD_DEFAULT, name));
    return function != nullptr;
  }
};

const Python& python() {
  static const Python only;
  return only;
}

/// The file of a function; null: it is of PyTorch, of this package, or of no file. With the interpreter's lock.
class FileTable {
 public:
  const char* fileOf(Python::Object* code) {
    const auto [entry, isNew] = files_.try_emplace(code, nullptr);
    if (!isNew) return entry->second;
    python().incref(code);  // its address shall not become another one's
    Python::Object* name = python().attribute(code, "co_filename");
    const char* text = name == nullptr ? nullptr : python().utf8(name, nullptr);
    if (text == nullptr) {
      python().clearError();
    } else if (!isInternal(text)) {
      entry->second = names_.try_emplace(text, std::make_unique<std::string>(text)).first->second->c_str();
    }
    if (name != nullptr) python().decref(name);
    return entry->second;
  }
  void passOver(const std::string& folder) { internal_.push_back(folder); }

 private:
  bool isInternal(absl::string_view file) const {
    return absl::StartsWith(file, "<") || std::any_of(internal_.begin(), internal_.end(), [&](const auto& folder) {
             return absl::StartsWith(file, folder);
           });
  }

  std::vector<std::string> internal_;
  absl::flat_hash_map<Python::Object*, const char*> files_;
  absl::flat_hash_map<std::string, std::unique_ptr<std::string>> names_;
};

FileTable& files() {
  static auto* only = new FileTable;
  return *only;
}

}  // namespace

void passOverFramesOf(const std::string& folder) { files().passOver(folder); }

Site callSite() {
  const Python& py = python();
  constexpr int kDeepest = 64;
  Site site = Site::of("python", 0);
  if (!py.isThere || py.isInitialized() == 0) return site;
  const int state = py.ensure();
  Python::Object* frame = py.currentFrame();
  if (frame != nullptr) py.incref(frame);
  for (int depth = 0; frame != nullptr && depth < kDeepest; ++depth) {
    Python::Object* code = py.frameCode(frame);
    const char* file = files().fileOf(code);
    py.decref(code);
    if (file != nullptr) {
      site = Site::of(file, static_cast<std::uint32_t>(py.frameLine(frame)));
      break;
    }
    Python::Object* back = py.frameBack(frame);
    py.decref(frame);
    frame = back;
  }
  if (frame != nullptr) py.decref(frame);
  py.release(state);
  return site;
}

}  // namespace dtorch
