#pragma once
#include <cstdint>
#include <source_location>

namespace dtorch {

/// Where a call stands in the program; goes into every error that comes of it.
struct Site {
  // What default arguments are made of: Site site = std::source_location::current().
  Site(const std::source_location& where)  // NOLINT(google-explicit-constructor)
      : file(where.file_name()), line(where.line()) {}
  /// For bindings. `file` must live as long as the session, and be the same pointer for the same file.
  static Site of(const char* file, std::uint32_t line) {
    Site site = std::source_location();
    site.file = file;
    site.line = line;
    return site;
  }

  const char* file;
  std::uint32_t line;
};

}  // namespace dtorch
