#include "client/cpp/tensor_checker.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cpp/npy_file.h"

namespace dtorch {
namespace {

absl::Status checkTag(const std::string& tag) {
  const auto allowed = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  };
  for (const absl::string_view part : absl::StrSplit(tag, '/')) {
    if (!part.empty() && part != "." && part != ".." && std::all_of(part.begin(), part.end(), allowed)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "tag '", tag, "' makes no file name: it is of letters, digits, '.', '_' and '-', with '/' for folders"));
  }
  return absl::OkStatus();
}

std::string pathOf(const std::string& folder, const std::string& tag) { return absl::StrCat(folder, "/", tag, ".npy"); }

absl::Status write(const std::string& path, const HostView& value) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (error) return absl::UnavailableError(absl::StrCat("cannot make the folder of ", path, ": ", error.message()));
  return writeNpy(path, value);
}

absl::StatusOr<HostTensor> copyOf(const HostView& value) {
  absl::StatusOr<TensorMeta> meta = checkView(value);
  if (!meta.ok()) return meta.status();
  const std::shared_ptr<std::byte[]> bytes(new std::byte[static_cast<std::size_t>(meta->bytes())]);
  copyElements(value, 0, meta->numel(), bytes.get());
  return HostTensor(*std::move(meta), bytes);
}

}  // namespace

HostView viewOf(const HostTensor& tensor) { return {tensor.bytes().data(), tensor.bytes().size(), tensor.meta()}; }

absl::Status TensorChecker::record(const std::string& tag, const HostView& value) {
  if (absl::Status status = checkTag(tag); !status.ok()) return status;
  absl::StatusOr<HostTensor> kept = HostTensor();
  if (options_.references.empty()) kept = copyOf(value);
  if (!kept.ok()) return kept.status();
  if (!recorded_.try_emplace(tag, *std::move(kept)).second) {
    return absl::AlreadyExistsError(absl::StrCat("tag '", tag, "' has a reference from this run already"));
  }
  return options_.references.empty() ? absl::OkStatus() : write(pathOf(options_.references, tag), value);
}

absl::Status TensorChecker::record(const std::string& tag, const Tensor& value) {
  const absl::StatusOr<HostTensor> known = value.get().get();
  return known.ok() ? record(tag, viewOf(*known)) : known.status();
}

absl::StatusOr<Comparison> TensorChecker::check(const std::string& tag, const HostView& value,
                                                const Tolerance& tolerance) {
  const absl::StatusOr<TensorMeta> meta = checkView(value);
  if (!meta.ok()) return meta.status();
  if (options_.record) {
    if (absl::Status status = record(tag, value); !status.ok()) return status;
    Comparison same;
    same.elements = meta->numel();
    return same;
  }
  const absl::StatusOr<HostTensor> expected = reference(tag);
  if (!expected.ok()) return expected.status();
  Comparison comparison = compare(value, viewOf(*expected), tolerance);
  if (absl::Status status = dump(tag, value, viewOf(*expected), comparison.ok()); !status.ok()) return status;
  return comparison;
}

absl::StatusOr<Comparison> TensorChecker::check(const std::string& tag, const Tensor& value,
                                                const Tolerance& tolerance) {
  const absl::StatusOr<HostTensor> known = value.get().get();
  if (!known.ok()) return known.status();
  return check(tag, viewOf(*known), tolerance);
}

absl::StatusOr<HostTensor> TensorChecker::reference(const std::string& tag) const {
  if (absl::Status status = checkTag(tag); !status.ok()) return status;
  if (!options_.references.empty()) return readNpy(pathOf(options_.references, tag));
  const auto it = recorded_.find(tag);
  if (it != recorded_.end()) return it->second;
  return absl::NotFoundError(absl::StrCat("tag '", tag, "' has no reference"));
}

absl::Status TensorChecker::dump(const std::string& tag, const HostView& value, const HostView& expected, bool ok) {
  if (options_.dumps.empty()) return absl::OkStatus();
  const bool wanted =
      options_.dumpWhen == DumpWhen::kAll || (!ok && (options_.dumpWhen == DumpWhen::kUnequal || !dumped_));
  if (!wanted) return absl::OkStatus();
  dumped_ = true;
  if (absl::Status status = write(pathOf(options_.dumps, tag), value); !status.ok()) return status;
  return write(pathOf(options_.dumps, absl::StrCat(tag, ".expected")), expected);
}

}  // namespace dtorch
