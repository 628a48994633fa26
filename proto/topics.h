#pragma once
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/ids.h"

namespace dtorch {

// ZeroMQ topics. Subscriptions match by prefix, so each ends in a slash. A frame is two parts: topic, dtorch.v1.Frame.

/// Frames for all ranks of a group.
inline std::string groupTopic(GroupId group) { return absl::StrCat("g", group, "/"); }
/// Subscribed by one rank after groupTopic(group): XPUB reports equal subscriptions only once, this one is the rank's
/// own.
inline std::string groupMarkerTopic(GroupId group, Rank rank) { return absl::StrCat("m", group, "/", rank, "/"); }
/// Frames for one rank; its subscription shows that the worker hears the publisher, its disappearance that it is gone.
/// One that is started in another's place hears another topic: neither subscription hides the other.
inline std::string workerTopic(Rank rank, std::uint64_t incarnation) {
  return absl::StrCat("w", rank, "/", incarnation, "/");
}

}  // namespace dtorch
