#include "core/config.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <numeric>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"

namespace dtorch {
namespace {

constexpr absl::string_view kEnvironmentPrefix = "DTORCH_";
constexpr absl::string_view kFileVariable = "DTORCH_CONFIG";

struct Unit {
  absl::string_view suffix;
  std::int64_t bytes;
};
constexpr std::array<Unit, 5> kByteUnits = {
    {{"TiB", 1LL << 40}, {"GiB", 1LL << 30}, {"MiB", 1LL << 20}, {"KiB", 1LL << 10}, {"B", 1}}};

std::string bytesText(std::int64_t bytes) {
  for (const Unit& unit : kByteUnits) {
    if (bytes != 0 && bytes % unit.bytes == 0) return absl::StrCat(bytes / unit.bytes, unit.suffix);
  }
  return "0";
}

std::string durationText(std::chrono::milliseconds value) { return absl::FormatDuration(absl::FromChrono(value)); }

bool fitsInFile(absl::string_view text) {
  return std::none_of(text.begin(), text.end(),
                      [](char c) { return c == '"' || absl::ascii_iscntrl(static_cast<unsigned char>(c)); });
}

std::string variableOf(absl::string_view key) {
  return absl::StrCat(kEnvironmentPrefix, absl::AsciiStrToUpper(absl::StrReplaceAll(key, {{".", "_"}})));
}

std::size_t editDistance(absl::string_view a, absl::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t above = row[j + 1];
      row[j + 1] = a[i] == b[j] ? diagonal : 1 + std::min({diagonal, above, row[j]});
      diagonal = above;
    }
  }
  return row.back();
}

absl::Status unknown(absl::string_view what, absl::string_view given, absl::string_view origin,
                     const std::vector<std::string>& known) {
  std::string message = absl::StrCat("unknown ", what, " ", given);
  if (!origin.empty()) absl::StrAppend(&message, " (", origin, ")");
  const auto nearest = std::min_element(known.begin(), known.end(), [&](const std::string& a, const std::string& b) {
    return editDistance(a, given) < editDistance(b, given);
  });
  if (nearest != known.end() && editDistance(*nearest, given) <= 4) {
    absl::StrAppend(&message, "; did you mean ", *nearest, "?");
  }
  return absl::InvalidArgumentError(
      absl::StrCat(message, message.back() == '?' ? " " : ". ", "--help lists all of them."));
}

/// A value as it was found, before its key is looked up.
struct Setting {
  std::string key;
  std::string value;
  std::string origin;
};

absl::Status lineError(const std::string& origin, absl::string_view advice) {
  return absl::InvalidArgumentError(absl::StrCat(origin, ": ", advice));
}

// The text after "=": quoted by " or ' without escapes, or bare up to a comment.
std::optional<std::string> fileValue(absl::string_view text) {
  if (text.empty() || (text.front() != '"' && text.front() != '\'')) {
    return std::string(absl::StripAsciiWhitespace(text.substr(0, text.find('#'))));
  }
  const std::size_t end = text.find(text.front(), 1);
  if (end == absl::string_view::npos) return std::nullopt;
  const absl::string_view rest = absl::StripLeadingAsciiWhitespace(text.substr(end + 1));
  if (!rest.empty() && rest.front() != '#') return std::nullopt;
  return std::string(text.substr(1, end - 1));
}

// The subset of TOML that the table needs: [section], key = value, # comments. Not CLI11's reader: that one cuts quoted
// text at a '#', joins repeated keys to a list and knows no line numbers.
absl::StatusOr<std::vector<Setting>> readFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    return absl::NotFoundError(absl::StrCat("cannot read the configuration file ", path, ": ", std::strerror(errno)));
  }
  std::vector<Setting> settings;
  std::map<std::string, std::string> seen;
  std::string section;
  std::string text;
  for (int number = 1; std::getline(file, text); ++number) {
    const std::string origin = absl::StrCat(path, ":", number);
    const absl::string_view line = absl::StripAsciiWhitespace(text);
    if (line.empty() || line.front() == '#') continue;
    if (line.front() == '[') {
      const std::size_t end = line.find(']');
      if (end == absl::string_view::npos)
        return lineError(origin, "a section needs its closing bracket, as in [workers]");
      section = std::string(absl::StripAsciiWhitespace(line.substr(1, end - 1)));
      continue;
    }
    const std::size_t equals = line.find('=');
    if (equals == absl::string_view::npos) {
      return lineError(origin, absl::StrCat("expected [section] or key = value, found: ", line));
    }
    const absl::string_view name = absl::StripTrailingAsciiWhitespace(line.substr(0, equals));
    const std::string key = section.empty() ? std::string(name) : absl::StrCat(section, ".", name);
    const std::optional<std::string> value = fileValue(absl::StripLeadingAsciiWhitespace(line.substr(equals + 1)));
    if (!value) return lineError(origin, absl::StrCat("the quotes around the value of ", key, " do not match"));
    const auto [first, isNew] = seen.emplace(key, origin);
    if (!isNew) return lineError(origin, absl::StrCat(key, " was already given at ", first->second));
    settings.push_back({key, *value, origin});
  }
  if (file.bad()) return absl::NotFoundError(absl::StrCat("cannot read the configuration file ", path));
  return settings;
}

/// The command line as CLI11 understands it, with every value still a text.
class CommandLine {
 public:
  CommandLine(const ConfigProgram& program, const std::vector<ConfigKey>& keys, const void* defaults)
      : app_(program.summary, program.name), values_(keys.size()) {
    app_.set_help_flag("");
    app_.allow_extras();
    app_.add_flag("-h,--help", request_.help, "print this and exit");
    app_.add_flag("--version", request_.version, "print the version and exit");
    app_.add_option("--config", file_, absl::StrCat("read this file first (or the one that ", kFileVariable, " names)"))
        ->type_name("FILE");
    app_.add_flag("--print-config", request_.printConfig, "print the configuration in force, as a file, and exit");
    for (std::size_t i = 0; i < keys.size(); ++i) addKey(keys[i], values_[i], defaults);
  }

  absl::Status parse(std::vector<std::string> arguments, const std::vector<ConfigKey>& keys) {
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
    try {
      app_.parse(std::move(arguments));
    } catch (const CLI::Error& error) {
      return absl::InvalidArgumentError(absl::StrCat(error.what(), ". --help lists all flags."));
    }
    if (const std::vector<std::string> extras = app_.remaining(); !extras.empty()) {
      std::vector<std::string> flags = {"--help", "--version", "--config", "--print-config"};
      for (const ConfigKey& key : keys) flags.push_back(absl::StrCat("--", key.name));
      return unknown("argument", extras.front().substr(0, extras.front().find('=')), "", flags);
    }
    return absl::OkStatus();
  }

  std::vector<Setting> settings(const std::vector<ConfigKey>& keys) const {
    std::vector<Setting> result;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (options_[i]->count() > 0) result.push_back({keys[i].name, values_[i], absl::StrCat("flag --", keys[i].name)});
    }
    return result;
  }

  std::string help() {
    std::string text = app_.help();
    while (absl::StrReplaceAll({{"\n\n\n", "\n\n"}}, &text) > 0) continue;  // CLI11 is generous with empty lines
    return text;
  }
  const config_detail::Request& request() const { return request_; }
  const std::string& file() const { return file_; }

 private:
  void addKey(const ConfigKey& key, std::string& value, const void* defaults) {
    const std::string flag = absl::StrCat("--", key.name);
    const std::string text = key.print(defaults);
    const std::string documentation = absl::StrCat(key.doc, text.empty() ? "" : absl::StrCat(" (", text, ")"),
                                                   key.quoted ? "" : absl::StrCat("\n", key.allowed));
    CLI::Option* option = nullptr;
    if (key.isSwitch) {
      option = app_.add_flag(flag, value, documentation);
    } else {
      option = app_.add_option(flag, value, documentation)->type_name("VALUE");
    }
    options_.push_back(option->take_last()->group(key.name.substr(0, key.name.find('.'))));
  }

  CLI::App app_;
  config_detail::Request request_;
  std::string file_;
  std::vector<std::string> values_;
  std::vector<CLI::Option*> options_;
};

absl::StatusOr<std::vector<Setting>> environmentSettings(const ConfigProgram& program,
                                                         const std::vector<ConfigKey>& keys,
                                                         const std::map<std::string, std::string>& environment) {
  std::map<std::string, std::string> keyOf;
  std::vector<std::string> known;
  known.reserve(keys.size());
  for (const ConfigKey& key : keys) {
    known.push_back(variableOf(key.name));
    keyOf.emplace(known.back(), key.name);
  }
  std::vector<Setting> settings;
  for (auto it = environment.lower_bound(std::string(kEnvironmentPrefix)); it != environment.end(); ++it) {
    const auto& [variable, value] = *it;
    if (!absl::StartsWith(variable, kEnvironmentPrefix)) break;
    const auto& others = program.otherVariables;
    if (variable == kFileVariable || std::find(others.begin(), others.end(), variable) != others.end()) continue;
    const auto key = keyOf.find(variable);
    if (key == keyOf.end()) return unknown("environment variable", variable, absl::StrCat("\"", value, "\""), known);
    settings.push_back({key->second, value, absl::StrCat("environment variable ", variable)});
  }
  return settings;
}

absl::Status apply(const std::vector<Setting>& settings, const std::vector<ConfigKey>& keys, void* config,
                   ConfigOrigins& origins) {
  for (const Setting& setting : settings) {
    const auto key =
        std::find_if(keys.begin(), keys.end(), [&](const ConfigKey& known) { return known.name == setting.key; });
    if (key == keys.end()) {
      std::vector<std::string> names;
      for (const ConfigKey& known : keys) names.push_back(known.name);
      return unknown("key", setting.key, setting.origin, names);
    }
    if (!key->parse(setting.value, config)) {
      return configError(setting.key, setting.value, setting.origin, absl::StrCat("allowed is ", key->allowed));
    }
    origins[setting.key] = setting.origin;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status configError(absl::string_view key, absl::string_view value, absl::string_view origin,
                         absl::string_view advice) {
  return absl::InvalidArgumentError(absl::StrCat(key, " = \"", value, "\" (", origin, "): ", advice));
}

ConfigInputs ConfigInputs::ofProcess(int argc, const char* const* argv) {
  ConfigInputs inputs;
  inputs.arguments.assign(argv + std::min(argc, 1), argv + argc);
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != std::string::npos) inputs.environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return inputs;
}

namespace config_detail {

std::string describe(const Range<std::int64_t>& range) {
  return absl::StrCat("a whole number from ", range.min, " to ", range.max);
}
std::string describe(const Range<std::chrono::milliseconds>& range) {
  return absl::StrCat("a duration such as 500ms, 4s, 10m or 1h, from ", durationText(range.min), " to ",
                      durationText(range.max));
}
std::string describe(const Range<ByteSize>& range) {
  return absl::StrCat("a size such as 4096, 64KiB, 256MiB or 1GiB, from ", bytesText(range.min.bytes), " to ",
                      bytesText(range.max.bytes));
}
std::string describe(AnyText) { return "a text without double quotes and line breaks"; }
std::string describe(AnyList) { return "texts without double quotes and line breaks, separated by commas"; }
std::string describe(AnyBool) { return "true or false"; }
std::string describeChoices(const std::vector<std::string>& words) { return absl::StrJoin(words, ", "); }

bool parse(absl::string_view text, const Range<std::int64_t>& range, std::int64_t& value) {
  std::int64_t number = 0;
  if (!absl::SimpleAtoi(text, &number) || number < range.min || number > range.max) return false;
  value = number;
  return true;
}

bool parse(absl::string_view text, const Range<std::chrono::milliseconds>& range, std::chrono::milliseconds& value) {
  absl::Duration duration;
  if (!absl::ParseDuration(std::string(text), &duration)) return false;
  const std::chrono::milliseconds whole = absl::ToChronoMilliseconds(duration);
  if (absl::FromChrono(whole) != duration || whole < range.min || whole > range.max) return false;
  value = whole;
  return true;
}

bool parse(absl::string_view text, const Range<ByteSize>& range, ByteSize& value) {
  std::int64_t factor = 1;
  for (const Unit& unit : kByteUnits) {
    if (!absl::ConsumeSuffix(&text, unit.suffix)) continue;
    factor = unit.bytes;
    break;
  }
  std::int64_t bytes = 0;
  if (!absl::SimpleAtoi(text, &bytes) || __builtin_mul_overflow(bytes, factor, &bytes)) return false;
  if (bytes < range.min.bytes || bytes > range.max.bytes) return false;
  value.bytes = bytes;
  return true;
}

bool parse(absl::string_view text, AnyText, std::string& value) {
  if (!fitsInFile(text)) return false;
  value = std::string(text);
  return true;
}

bool parse(absl::string_view text, AnyList, std::vector<std::string>& value) {
  if (!fitsInFile(text)) return false;
  value.clear();
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const absl::string_view stripped = absl::StripAsciiWhitespace(part);
    if (!stripped.empty()) value.emplace_back(stripped);
  }
  return true;
}

bool parse(absl::string_view text, AnyBool, bool& value) {
  if (text != "true" && text != "false") return false;
  value = text == "true";
  return true;
}

std::string print(std::int64_t value, const Range<std::int64_t>&) { return absl::StrCat(value); }
std::string print(std::chrono::milliseconds value, const Range<std::chrono::milliseconds>&) {
  return durationText(value);
}
std::string print(ByteSize value, const Range<ByteSize>&) { return bytesText(value.bytes); }
std::string print(const std::string& value, AnyText) { return value; }
std::string print(const std::vector<std::string>& value, AnyList) { return absl::StrJoin(value, ","); }
std::string print(bool value, AnyBool) { return value ? "true" : "false"; }

absl::StatusOr<Request> read(const ConfigProgram& program, const std::vector<ConfigKey>& keys,
                             const ConfigInputs& inputs, void* config, ConfigOrigins& origins) {
  CommandLine commandLine(program, keys, config);
  if (absl::Status status = commandLine.parse(inputs.arguments, keys); !status.ok()) return status;
  const Request& request = commandLine.request();
  if (request.help || request.version) return request;

  for (const ConfigKey& key : keys) origins[key.name] = "default";
  std::string path = commandLine.file();
  if (const auto it = inputs.environment.find(std::string(kFileVariable));
      path.empty() && it != inputs.environment.end()) {
    path = it->second;
  }
  // Weakest first: what comes later replaces what was there.
  if (!path.empty()) {
    const auto settings = readFile(path);
    if (!settings.ok()) return settings.status();
    if (absl::Status status = apply(*settings, keys, config, origins); !status.ok()) return status;
  }
  const auto variables = environmentSettings(program, keys, inputs.environment);
  if (!variables.ok()) return variables.status();
  if (absl::Status status = apply(*variables, keys, config, origins); !status.ok()) return status;
  if (absl::Status status = apply(commandLine.settings(keys), keys, config, origins); !status.ok()) return status;
  return request;
}

std::string helpText(const ConfigProgram& program, const std::vector<ConfigKey>& keys, const void* defaults) {
  return absl::StrCat(CommandLine(program, keys, defaults).help(), "Each of them can also be given as ",
                      "an environment variable (--workers.count is DTORCH_WORKERS_COUNT) or in the file ",
                      "(section [workers], count = 2). A flag wins over the environment, that over the file.\n");
}

std::string fileText(const ConfigProgram& program, const std::vector<ConfigKey>& keys, const void* config,
                     const ConfigOrigins& origins) {
  std::string text = absl::StrCat("# Configuration of ", program.name, " ", program.version, "\n");
  std::string section;
  for (const ConfigKey& key : keys) {
    const std::size_t dot = key.name.find('.');
    if (key.name.substr(0, dot) != section) {
      section = key.name.substr(0, dot);
      absl::StrAppend(&text, "\n[", section, "]\n");
    }
    const absl::string_view quote = key.quoted ? "\"" : "";
    absl::StrAppend(&text, key.name.substr(dot + 1), " = ", quote, key.print(config), quote, "  # ",
                    origins.at(key.name), "\n");
  }
  return text;
}

}  // namespace config_detail
}  // namespace dtorch
