#include "core/config.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "tests/catch.h"

namespace dtorch {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

enum class Mode { kProcess, kThread };

struct Settings {
  std::int64_t count = 2;
  milliseconds timeout = seconds(60);
  ByteSize bytes{256LL << 20};
  std::string socket;
  std::vector<std::string> libraries;
  bool verbose = false;
  Mode mode = Mode::kProcess;
};

const ConfigTable<Settings>& table() {
  static const ConfigTable<Settings> result(
      {"testd", "A program for tests.", "1.2.3", {"DTORCH_SOCKET"}},
      {
          {"workers.count", &Settings::count, {1, 64}, "number of workers"},
          {"workers.mode", &Settings::mode, {{"process", Mode::kProcess}, {"thread", Mode::kThread}}, "kind"},
          {"workers.start_timeout", &Settings::timeout, {milliseconds(1), hours(1)}, "time to come up"},
          {"executor.bytes", &Settings::bytes, {{1}, {1LL << 40}}, "limit in bytes"},
          {"listen.socket", &Settings::socket, {}, "where clients connect"},
          {"operators.libraries", &Settings::libraries, {}, "what to load"},
          {"log.verbose", &Settings::verbose, {}, "say more"},
      },
      [](Settings& settings, const ConfigOrigins& origins, const ConfigInputs&) -> absl::Status {
        if (settings.socket.empty()) settings.socket = "/run/testd.sock";
        if (settings.socket == "/forbidden") {
          return configError("listen.socket", settings.socket, origins.at("listen.socket"), "choose another");
        }
        return absl::OkStatus();
      });
  return result;
}

/// A file in the temporary folder, removed at the end of the test.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text)
      : path_(std::filesystem::temp_directory_path() / ("dtorch_config_test." + std::to_string(::getpid()))) {
    std::ofstream(path_) << text;
  }
  TemporaryFile(const TemporaryFile&) = delete;
  ~TemporaryFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

absl::StatusOr<LoadedConfig<Settings>> load(std::vector<std::string> arguments,
                                            std::map<std::string, std::string> environment = {}) {
  return table().load({std::move(arguments), std::move(environment)});
}

std::string errorOf(const absl::StatusOr<LoadedConfig<Settings>>& loaded) {
  REQUIRE_FALSE(loaded.ok());
  REQUIRE(loaded.status().code() == absl::StatusCode::kInvalidArgument);
  return std::string(loaded.status().message());
}

void checkContains(const std::string& text, const std::string& part) {
  CAPTURE(text, part);
  CHECK(absl::StrContains(text, part));
}

TEST_CASE("without any input, every key has its default") {
  const auto loaded = load({}, {{"PATH", "/bin"}});
  REQUIRE(loaded.ok());
  CHECK(loaded->config.count == 2);
  CHECK(loaded->config.timeout == seconds(60));
  CHECK(loaded->config.bytes.bytes == 268435456);
  CHECK(loaded->config.socket == "/run/testd.sock");
  CHECK_FALSE(loaded->config.verbose);
  CHECK(loaded->config.mode == Mode::kProcess);
  CHECK(loaded->output.empty());
  for (const ConfigKey& key : table().keys()) CHECK(loaded->origins.at(key.name) == "default");
}

TEST_CASE("each type is read from a flag, in either form") {
  const auto loaded = load({"--workers.count=3", "--workers.mode", "thread", "--workers.start_timeout", "1.5s",
                            "--executor.bytes=64KiB", "--listen.socket", "/tmp/a b#c.sock", "--log.verbose",
                            "--operators.libraries", " /a.so,, /b c.so"});
  REQUIRE(loaded.ok());
  CHECK((loaded->config.libraries == std::vector<std::string>{"/a.so", "/b c.so"}));
  CHECK(loaded->config.count == 3);
  CHECK(loaded->config.mode == Mode::kThread);
  CHECK(loaded->config.timeout == milliseconds(1500));
  CHECK(loaded->config.bytes.bytes == 65536);
  CHECK(loaded->config.socket == "/tmp/a b#c.sock");
  CHECK(loaded->config.verbose);
  CHECK(loaded->origins.at("workers.count") == "flag --workers.count");
}

TEST_CASE("the last of a repeated flag counts") {
  const auto loaded = load({"--workers.count=3", "--workers.count=4"});
  REQUIRE(loaded.ok());
  CHECK(loaded->config.count == 4);
}

TEST_CASE("a flag wins over the environment, the environment over the file, the file over the default") {
  const TemporaryFile file(
      "# comment\n[workers]\ncount = 10\nstart_timeout = 10s  # comment\nmode=thread\n"
      "[executor]\nbytes = 10\n[listen]\nsocket = \"/x # y\"\n");
  const std::map<std::string, std::string> environment = {{"DTORCH_WORKERS_COUNT", "20"},
                                                          {"DTORCH_WORKERS_START_TIMEOUT", "20s"}};
  const auto loaded = load({"--config", file.path(), "--workers.count", "30"}, environment);
  REQUIRE(loaded.ok());
  CHECK(loaded->config.count == 30);
  CHECK(loaded->config.timeout == seconds(20));
  CHECK(loaded->config.mode == Mode::kThread);
  CHECK(loaded->config.bytes.bytes == 10);
  CHECK(loaded->config.socket == "/x # y");
  CHECK_FALSE(loaded->config.verbose);
  CHECK(loaded->origins.at("workers.start_timeout") == "environment variable DTORCH_WORKERS_START_TIMEOUT");
  CHECK(loaded->origins.at("executor.bytes") == file.path() + ":7");
  CHECK(loaded->origins.at("log.verbose") == "default");

  const auto byVariable = load({}, {{"DTORCH_CONFIG", file.path()}});
  REQUIRE(byVariable.ok());
  CHECK(byVariable->config.count == 10);
}

TEST_CASE("an unknown key is an error that names it and the nearest known one") {
  CHECK(errorOf(load({"--worker.count=3"})) ==
        "unknown argument --worker.count; did you mean --workers.count? --help lists all of them.");
  checkContains(errorOf(load({"stray"})), "unknown argument stray");
  checkContains(errorOf(load({}, {{"DTORCH_WORKER_COUNT", "3"}})),
                "unknown environment variable DTORCH_WORKER_COUNT (\"3\"); did you mean "
                "DTORCH_WORKERS_COUNT?");
  const TemporaryFile file("[workers]\nconut = 3\n");
  checkContains(errorOf(load({"--config=" + file.path()})),
                "unknown key workers.conut (" + file.path() + ":2); did you mean workers.count?");
}

TEST_CASE("variables that are not keys are let pass only when the program lists them") {
  CHECK(load({}, {{"DTORCH_SOCKET", "/x"}, {"DTORCHX", "y"}}).ok());
  CHECK_FALSE(load({}, {{"DTORCH_OTHER", "x"}}).ok());
}

TEST_CASE("a bad value is an error that names key, value, origin and what is allowed") {
  CHECK(errorOf(load({"--workers.count=many"})) ==
        "workers.count = \"many\" (flag --workers.count): allowed is a whole number from 1 to 64");
  CHECK(errorOf(load({}, {{"DTORCH_WORKERS_MODE", "fork"}})) ==
        "workers.mode = \"fork\" (environment variable DTORCH_WORKERS_MODE): allowed is process, thread");
  const TemporaryFile file("\n\nexecutor.bytes = 3MB\n");
  CHECK(errorOf(load({"--config", file.path()})) ==
        "executor.bytes = \"3MB\" (" + file.path() +
            ":3): allowed is a size such as 4096, 64KiB, 256MiB or 1GiB, from 1B to 1TiB");
  checkContains(errorOf(load({"--workers.count"})), "workers.count");
}

TEST_CASE("numbers out of range, without unit, or too large for their type are refused") {
  for (const char* text : {"0", "65", "-1", "", " ", "1.5", "0x10", "99999999999999999999"}) {
    CAPTURE(text);
    CHECK_FALSE(load({"--workers.count=" + std::string(text)}).ok());
  }
  for (const char* text : {"60", "0s", "2h", "1us", "inf", "s", "-1s", "99999999999h"}) {
    CAPTURE(text);
    CHECK_FALSE(load({"--workers.start_timeout=" + std::string(text)}).ok());
  }
  for (const char* text : {"0", "2TiB", "-1", "KiB", "1.5MiB", "9223372036854775807KiB"}) {
    CAPTURE(text);
    CHECK_FALSE(load({"--executor.bytes=" + std::string(text)}).ok());
  }
  for (const char* text : {"a\"b", "a\nb"}) CHECK_FALSE(load({"--listen.socket=" + std::string(text)}).ok());
}

TEST_CASE("each bound of a range is allowed") {
  for (const char* text : {"1", "64"}) CHECK(load({"--workers.count=" + std::string(text)}).ok());
  for (const char* text : {"1ms", "1h", "60m"}) CHECK(load({"--workers.start_timeout=" + std::string(text)}).ok());
  for (const char* text : {"1", "1B", "1TiB"}) CHECK(load({"--executor.bytes=" + std::string(text)}).ok());
}

TEST_CASE("a malformed file is an error with its line") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[workers\ncount = 1\n", ":1: a section needs its closing bracket"},
      {"[workers]\ncount\n", ":2: expected [section] or key = value, found: count"},
      {"listen.socket = \"/a\n", ":1: the quotes around the value of listen.socket do not match"},
      {"listen.socket = \"/a\" b\n", ":1: the quotes around the value of listen.socket do not match"},
      {"workers.count = 1\n[workers]\ncount = 2\n", ":3: workers.count was already given at "},
  };
  for (const auto& [text, message] : cases) {
    const TemporaryFile file(text);
    checkContains(errorOf(load({"--config", file.path()})), file.path() + message);
  }
}

TEST_CASE("a file that cannot be read is an error that names it") {
  const auto loaded = load({"--config", "/nonexistent/dtorchd.toml"});
  CHECK(loaded.status().code() == absl::StatusCode::kNotFound);
  checkContains(std::string(loaded.status().message()), "/nonexistent/dtorchd.toml: No such file");
  CHECK(load({"--config", std::filesystem::temp_directory_path().string()}).status().code() ==
        absl::StatusCode::kNotFound);
}

TEST_CASE("what depends on the whole configuration is checked with the origin of the key") {
  CHECK(errorOf(load({"--listen.socket=/forbidden"})) ==
        "listen.socket = \"/forbidden\" (flag --listen.socket): choose another");
}

TEST_CASE("--print-config names every key and its origin, and reads back as the same configuration") {
  const std::vector<std::string> arguments = {
      "--workers.count=3", "--workers.start_timeout=1500ms", "--executor.bytes=96MiB", "--listen.socket=/tmp/a 'b' #c",
      "--log.verbose",     "--workers.mode=thread",          "--print-config"};
  const auto printed = load(arguments);
  REQUIRE(printed.ok());
  checkContains(printed->output, "[workers]\ncount = 3  # flag --workers.count\n");
  checkContains(printed->output, "socket = \"/tmp/a 'b' #c\"  # flag --listen.socket\n");

  const TemporaryFile file(printed->output);
  const auto loaded = load({"--config", file.path(), "--print-config"});
  REQUIRE(loaded.ok());
  for (const ConfigKey& key : table().keys()) {
    CHECK(key.print(&loaded->config) == key.print(&printed->config));
    checkContains(loaded->origins.at(key.name), file.path());
  }
}

TEST_CASE("--help names every key with its default and documentation, and needs no valid configuration") {
  const auto loaded = load({"--help"}, {{"DTORCH_WORKERS_COUNT", "bad"}});
  REQUIRE(loaded.ok());
  for (const ConfigKey& key : table().keys()) {
    checkContains(loaded->output, "--" + key.name);
    checkContains(loaded->output, key.doc);
  }
  CHECK_FALSE(absl::StrContains(loaded->output, "\n\n\n"));
  checkContains(loaded->output, "256MiB");
  checkContains(loaded->output, "1m");
}

TEST_CASE("--version prints the program and its version") {
  const auto loaded = load({"--version"});
  REQUIRE(loaded.ok());
  CHECK(loaded->output == "testd 1.2.3\n");
}

TEST_CASE("the process's own flags and environment are read") {
  ::setenv("DTORCH_WORKERS_COUNT", "7", 1);
  const char* const argv[] = {"testd", "--workers.mode=thread"};
  const ConfigInputs inputs = ConfigInputs::ofProcess(2, argv);
  ::unsetenv("DTORCH_WORKERS_COUNT");
  CHECK(inputs.arguments == std::vector<std::string>{"--workers.mode=thread"});
  CHECK(inputs.environment.at("DTORCH_WORKERS_COUNT") == "7");
  CHECK(ConfigInputs::ofProcess(0, nullptr).arguments.empty());
}

}  // namespace
}  // namespace dtorch
