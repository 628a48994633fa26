#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/cpp/argument.h"
#include "client/cpp/site.h"
#include "core/placement.h"
#include "core/value.h"

namespace dtorch {

/// A call with all that its template depends on: everything but which tensors are passed.
struct CallView {
  absl::string_view name;
  absl::Span<const Argument> positional;
  absl::Span<const NamedArgument> named;
  std::uint32_t outputs;
  std::uint32_t mesh;
  const Placements& placements;
  std::size_t hash = 0;
};

/// The calls that the daemon has a template for. At most kCapacity of them: then it forgets all and numbers from 1
/// again, and the daemon's templates are replaced one by one. Thread: none of its own.
class TemplateTable {
 public:
  static constexpr std::uint32_t kCapacity = 1u << 14;

  struct Entry {
    std::uint32_t id;
    const Arguments* define;  // what the daemon has to be told first; nullptr: it knows
  };
  Entry intern(CallView call);

 private:
  struct Key {
    std::string name;
    Arguments arguments;
    std::uint32_t outputs;
    std::uint32_t mesh;
    Placements placements;
    std::size_t hash;
  };
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(const Key& key) const { return key.hash; }
    std::size_t operator()(const CallView& call) const { return call.hash; }
  };
  struct Equal {
    using is_transparent = void;
    bool operator()(const Key& a, const Key& b) const;
    bool operator()(const Key& key, const CallView& call) const;
    bool operator()(const CallView& call, const Key& key) const { return (*this)(key, call); }
  };
  absl::flat_hash_map<Key, std::uint32_t, Hash, Equal> ids_;
};

/// The call sites that the daemon has been told of. Thread: none of its own.
class SiteTable {
 public:
  /// The site's number, and whether it is new.
  std::pair<std::uint32_t, bool> intern(Site site);

 private:
  absl::flat_hash_map<std::pair<const char*, std::uint32_t>, std::uint32_t> ids_;
};

}  // namespace dtorch
