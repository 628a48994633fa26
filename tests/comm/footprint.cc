#include "tests/comm/footprint.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace dtorch::testing {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kFreesAtOnce = false;  // freed memory is kept for a while, to find who still uses it
#else
constexpr bool kFreesAtOnce = true;
#endif
constexpr std::size_t kSlackMappings = 8;

}  // namespace

Footprint Footprint::now() {
  Footprint footprint;
  const std::filesystem::directory_iterator open("/proc/self/fd");
  footprint.descriptors = static_cast<std::size_t>(std::distance(open, std::filesystem::directory_iterator{}));
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) ++footprint.mappings;
  std::size_t all = 0;
  std::ifstream("/proc/self/statm") >> all >> footprint.pages;
  return footprint;
}

std::string Footprint::growthSince(const Footprint& before, std::size_t slackPages) const {
  std::string growth;
  const auto compare = [&growth](const char* what, std::size_t then, std::size_t now) {
    if (now > then) absl::StrAppend(&growth, what, " ", then, " to ", now, "; ");
  };
  compare("descriptors", before.descriptors, descriptors);
  if (kFreesAtOnce) {
    compare("mappings", before.mappings + kSlackMappings, mappings);
    compare("resident pages", before.pages + slackPages, pages);
  }
  return growth;
}

}  // namespace dtorch::testing
