#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtorch {

/// A number of bytes, written "4096", "64KiB", "256MiB", "1GiB".
struct ByteSize {
  std::int64_t bytes = 0;
  friend auto operator<=>(const ByteSize&, const ByteSize&) = default;
};

/// The values that a key may take. Bounds belong to the range.
template <typename T>
struct Range {
  T min;
  T max;
};
/// The words that the values of an enumeration are written as.
template <typename E>
using Choices = std::vector<std::pair<std::string, E>>;
struct AnyText {};  // without line breaks and double quotes, so that a file can hold it
struct AnyList {};  // of texts without commas
struct AnyBool {};

namespace config_detail {
// For each type of member: the rule that a row gives, what it allows in words, and text from and to a value.
template <typename T>
struct RuleOf {
  using Type = std::conditional_t<std::is_enum_v<T>, Choices<T>, Range<T>>;
};
template <>
struct RuleOf<std::string> {
  using Type = AnyText;
};
template <>
struct RuleOf<std::vector<std::string>> {
  using Type = AnyList;
};
template <>
struct RuleOf<bool> {
  using Type = AnyBool;
};

std::string describe(const Range<std::int64_t>& range);
std::string describe(const Range<std::chrono::milliseconds>& range);
std::string describe(const Range<ByteSize>& range);
std::string describe(AnyText rule);
std::string describe(AnyList rule);
std::string describe(AnyBool rule);
std::string describeChoices(const std::vector<std::string>& words);

bool parse(absl::string_view text, const Range<std::int64_t>& range, std::int64_t& value);
bool parse(absl::string_view text, const Range<std::chrono::milliseconds>& range, std::chrono::milliseconds& value);
bool parse(absl::string_view text, const Range<ByteSize>& range, ByteSize& value);
bool parse(absl::string_view text, AnyText rule, std::string& value);
bool parse(absl::string_view text, AnyList rule, std::vector<std::string>& value);
bool parse(absl::string_view text, AnyBool rule, bool& value);

std::string print(std::int64_t value, const Range<std::int64_t>& range);
std::string print(std::chrono::milliseconds value, const Range<std::chrono::milliseconds>& range);
std::string print(ByteSize value, const Range<ByteSize>& range);
std::string print(const std::string& value, AnyText rule);
std::string print(const std::vector<std::string>& value, AnyList rule);
std::string print(bool value, AnyBool rule);

template <typename E>
std::string describe(const Choices<E>& choices) {
  std::vector<std::string> words;
  for (const auto& [word, value] : choices) words.push_back(word);
  return describeChoices(words);
}
template <typename E>
bool parse(absl::string_view text, const Choices<E>& choices, E& value) {
  for (const auto& [word, choice] : choices) {
    if (text != word) continue;
    value = choice;
    return true;
  }
  return false;
}
template <typename E>
std::string print(E value, const Choices<E>& choices) {
  for (const auto& [word, choice] : choices) {
    if (choice == value) return word;
  }
  return "?";
}
}  // namespace config_detail

/// One key of a table, whatever its type: all that the file, the environment, the flags and the two print-outs know.
struct ConfigKey {
  std::string name;     // "workers.count": section and key of the file, flag --workers.count, DTORCH_WORKERS_COUNT
  std::string allowed;  // "a whole number from 1 to 1024"
  std::string doc;
  std::function<bool(absl::string_view text, void* config)> parse;  // false: not allowed, nothing changed
  std::function<std::string(const void* config)> print;
  bool quoted = false;  // a text
  bool isSwitch = false;
};

/// A row of the table of S: key, member, what is allowed, one line of documentation. The default is the member's own
/// initialiser. Members are bool, std::int64_t, std::chrono::milliseconds, ByteSize, std::string,
/// std::vector<std::string> or an enumeration.
template <typename S>
struct ConfigRow : ConfigKey {
  template <typename T>
  ConfigRow(std::string key, T S::*member, typename config_detail::RuleOf<T>::Type rule, std::string documentation)
      : ConfigKey{std::move(key),
                  config_detail::describe(rule),
                  std::move(documentation),
                  [member, rule](absl::string_view text, void* config) {
                    return config_detail::parse(text, rule, static_cast<S*>(config)->*member);
                  },
                  [member, rule](const void* config) {
                    return config_detail::print(static_cast<const S*>(config)->*member, rule);
                  },
                  std::is_same_v<T, std::string> || std::is_same_v<T, std::vector<std::string>>,
                  std::is_same_v<T, bool>} {}
};

/// Where values are read from, strongest first: flags, environment, the file that --config or DTORCH_CONFIG names.
struct ConfigInputs {
  std::vector<std::string> arguments;  // without the program's name
  std::map<std::string, std::string> environment;
  static ConfigInputs ofProcess(int argc, const char* const* argv);
};

/// Where each key's value came from, for messages: "flag --workers.count", "dtorchd.toml:7", "default".
using ConfigOrigins = std::map<std::string, std::string>;

/// INVALID_ARGUMENT that names key, value and origin, and says what to do.
absl::Status configError(absl::string_view key, absl::string_view value, absl::string_view origin,
                         absl::string_view advice);

/// What a program is called and does, for --help, and the DTORCH_ variables that are not keys of its table.
struct ConfigProgram {
  std::string name;
  std::string summary;
  std::string version;
  std::vector<std::string> otherVariables;
};

namespace config_detail {
struct Request {
  bool help = false;
  bool version = false;
  bool printConfig = false;
};
absl::StatusOr<Request> read(const ConfigProgram& program, const std::vector<ConfigKey>& keys,
                             const ConfigInputs& inputs, void* config, ConfigOrigins& origins);
std::string helpText(const ConfigProgram& program, const std::vector<ConfigKey>& keys, const void* defaults);
std::string fileText(const ConfigProgram& program, const std::vector<ConfigKey>& keys, const void* config,
                     const ConfigOrigins& origins);
}  // namespace config_detail

template <typename S>
struct LoadedConfig {
  S config;
  ConfigOrigins origins;
  std::string output;  // not empty: --help, --version or --print-config was given; print this and exit with 0
};

/// The one place that knows a program's configuration: each key is one row, and file, environment, flags, --help and
/// --print-config follow from it.
template <typename S>
class ConfigTable {
 public:
  /// `resolve` fills in defaults that depend on other values or on the machine, and checks across keys.
  using Resolve = std::function<absl::Status(S& config, const ConfigOrigins& origins, const ConfigInputs& inputs)>;

  ConfigTable(ConfigProgram program, std::vector<ConfigRow<S>> rows, Resolve resolve)
      : program_(std::move(program)), keys_(rows.begin(), rows.end()), resolve_(std::move(resolve)) {}

  /// INVALID_ARGUMENT: an unknown key or a value that is not allowed. NOT_FOUND: the file cannot be read.
  absl::StatusOr<LoadedConfig<S>> load(const ConfigInputs& inputs) const {
    LoadedConfig<S> loaded;
    const auto request = config_detail::read(program_, keys_, inputs, &loaded.config, loaded.origins);
    if (!request.ok()) return request.status();
    const S defaults;
    if (request->help) {
      loaded.output = config_detail::helpText(program_, keys_, &defaults);
    } else if (request->version) {
      loaded.output = program_.name + " " + program_.version + "\n";
    } else {
      if (absl::Status status = resolve_(loaded.config, loaded.origins, inputs); !status.ok()) return status;
      if (request->printConfig) {
        loaded.output = config_detail::fileText(program_, keys_, &loaded.config, loaded.origins);
      }
    }
    return loaded;
  }

  const std::vector<ConfigKey>& keys() const { return keys_; }

 private:
  ConfigProgram program_;
  std::vector<ConfigKey> keys_;
  Resolve resolve_;
};

}  // namespace dtorch
