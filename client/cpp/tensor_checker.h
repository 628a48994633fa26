#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/comparison.h"
#include "client/cpp/host_tensor.h"
#include "client/cpp/tensor.h"

namespace dtorch {

/// Which of the checked tensors are written to the folder of dumps.
enum class DumpWhen : std::uint8_t { kUnequal, kFirstUnequal, kAll };

struct CheckerOptions {
  std::string references = {};  // a folder; empty: memory
  bool record = false;          // check() makes references instead of comparing with them
  std::string dumps = {};       // a folder for <tag>.npy and <tag>.expected.npy; empty: none are written
  DumpWhen dumpWhen = DumpWhen::kUnequal;
};

/// Compares tensors with references by tag. References are kept in memory, or as <tag>.npy in a folder, where one run
/// of a program puts them and later ones, or other programs, find them.
///
/// Thread: one at a time. Waits for the values of tensors.
/// Errors: INVALID_ARGUMENT: a tag that makes no file name (letters, digits, ._- and /); else those of a tensor's value
/// and of files.
class TensorChecker {
 public:
  explicit TensorChecker(CheckerOptions options = {}) : options_(std::move(options)) {}

  /// Makes `value` the reference of `tag`. ALREADY_EXISTS: it has one from this run.
  absl::Status record(const std::string& tag, const HostView& value);
  absl::Status record(const std::string& tag, const Tensor& value);

  /// NOT_FOUND: there is no reference of that tag. What differs is told in the result, not by an error.
  absl::StatusOr<Comparison> check(const std::string& tag, const HostView& value, const Tolerance& tolerance = {});
  absl::StatusOr<Comparison> check(const std::string& tag, const Tensor& value, const Tolerance& tolerance = {});

 private:
  absl::StatusOr<HostTensor> reference(const std::string& tag) const;
  absl::Status dump(const std::string& tag, const HostView& value, const HostView& expected, bool ok);

  const CheckerOptions options_;
  std::map<std::string, HostTensor> recorded_;  // of this run; without value when it is in a file
  bool dumped_ = false;
};

/// The tensor in the form that put() and compare() take.
HostView viewOf(const HostTensor& tensor);

}  // namespace dtorch
