#include "client/ctl/ctl.h"

#include <CLI/CLI.hpp>
#include <array>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/address.h"
#include "client/ctl/daemon_client.h"
#include "client/ctl/report.h"
#include "proto/version.h"

namespace dtorch {
namespace {

using std::chrono::steady_clock;

struct Invocation {
  std::ostream& out;
  std::ostream& err;
  std::string socket = {};
  double timeout = 0;  // s; 0: the command's own
  double wait = 0;     // s
  double grace = 5;    // s
  bool stacks = false;
  bool json = false;

  steady_clock::time_point deadline(double seconds) const {
    return steady_clock::now() + std::chrono::duration_cast<steady_clock::duration>(
                                     std::chrono::duration<double>(timeout > 0 ? timeout : seconds));
  }
  std::string address() const { return socket.empty() ? defaultAddress() : grpcAddress(socket); }
  DaemonClient client() const { return DaemonClient(address()); }
  int print(const nlohmann::json& value, const std::string& text, int exitCode) const {
    out << (json ? value.dump(2) + "\n" : text);
    return exitCode;
  }
  int fail(const absl::Status& status, int exitCode = kExitUnreachable) const {
    if (json) {
      out << nlohmann::json{{"error",
                             {{"code", absl::StatusCodeToString(status.code())},
                              {"message", std::string(status.message())}}}}
                 .dump(2, ' ', false, nlohmann::json::error_handler_t::replace)
          << "\n";
    } else {
      err << "dtorchctl: " << status.message() << "\n";
    }
    return exitCode;
  }
};

int exitCode(const v1::StatusReply& status) {
  return status.health() == v1::HEALTH_HEALTHY ? kExitHealthy : kExitDegraded;
}

absl::StatusOr<v1::StatusReply> ask(const Invocation& invocation) {
  DaemonClient client = invocation.client();
  if (invocation.wait > 0) {
    return client.waitUntilHealthy(steady_clock::now() + std::chrono::duration_cast<steady_clock::duration>(
                                                             std::chrono::duration<double>(invocation.wait)));
  }
  return client.status(invocation.deadline(1));
}

int showStatus(const Invocation& invocation) {
  const absl::StatusOr<v1::StatusReply> status = ask(invocation);
  if (!status.ok()) return invocation.fail(status.status());
  nlohmann::json json = summaryJson(*status);
  json["workers"] = workersJson(*status);
  json["sessions"] = sessionsJson(*status);
  const std::string text = formatSummary(*status) + "\n" + formatWorkers(*status) + "\n" + formatSessions(*status);
  return invocation.print(json, text, exitCode(*status));
}

int showWorkers(const Invocation& invocation) {
  const absl::StatusOr<v1::StatusReply> status = ask(invocation);
  if (!status.ok()) return invocation.fail(status.status());
  return invocation.print(workersJson(*status), formatWorkers(*status), exitCode(*status));
}

int showSessions(const Invocation& invocation) {
  const absl::StatusOr<v1::StatusReply> status = ask(invocation);
  if (!status.ok()) return invocation.fail(status.status());
  return invocation.print(sessionsJson(*status), formatSessions(*status), exitCode(*status));
}

int showOperators(const Invocation& invocation) {
  const absl::StatusOr<v1::StatusReply> status = ask(invocation);
  if (!status.ok()) return invocation.fail(status.status());
  return invocation.print(operatorsJson(*status), formatOperators(*status), exitCode(*status));
}

int showStuck(const Invocation& invocation) {
  const absl::StatusOr<v1::StatusReply> status =
      invocation.stacks ? invocation.client().statusWithStacks(invocation.deadline(5)) : ask(invocation);
  if (!status.ok()) return invocation.fail(status.status());
  nlohmann::json json{{"workers", stuckJson(*status)}};
  if (invocation.stacks) json["stacks"] = stacksJson(*status);
  return invocation.print(json, formatStuck(*status) + (invocation.stacks ? formatStacks(*status) : ""),
                          exitCode(*status));
}

int stopDaemon(const Invocation& invocation, std::chrono::milliseconds drain) {
  const double limit = 30 + std::chrono::duration<double>(drain).count();
  const absl::StatusOr<DaemonClient::Stopped> stopped = invocation.client().stop(drain, invocation.deadline(limit));
  if (!stopped.ok()) return invocation.fail(stopped.status());
  const std::string text = absl::StrCat("dtorchd (pid ", stopped->pid,
                                        stopped->gone ? ") has stopped\n" : ") is stopping, and not gone yet\n");
  return invocation.print({{"pid", stopped->pid}, {"gone", stopped->gone}}, text,
                          stopped->gone ? kExitHealthy : kExitDegraded);
}

int stopAtOnce(const Invocation& invocation) { return stopDaemon(invocation, std::chrono::milliseconds(0)); }

int drainDaemon(const Invocation& invocation) {
  return stopDaemon(invocation, std::chrono::milliseconds(static_cast<std::int64_t>(invocation.grace * 1000)));
}

int showVersion(const Invocation& invocation) {
  const absl::StatusOr<v1::StatusReply> status = ask(invocation);
  nlohmann::json json{{"dtorchctl", kDtorchVersion}, {"protocol", kProtocolVersion}};
  const std::string text = absl::StrCat("dtorchctl ", kDtorchVersion, ", protocol ", kProtocolVersion, "\n");
  if (!status.ok()) {
    json["dtorchd"] = nullptr;
    return invocation.print(json, absl::StrCat(text, status.status().message(), "\n"), kExitHealthy);
  }
  json["dtorchd"] = summaryJson(*status)["version"];
  return invocation.print(json, absl::StrCat(text, "dtorchd ", status->version(), ", pid ", status->pid(), "\n"),
                          kExitHealthy);
}

struct Command {
  const char* name;
  const char* help;
  int (*run)(const Invocation&);
  void (*addOptions)(CLI::App*, Invocation*);  // of its own; null: none
};

void addWait(CLI::App* command, Invocation* invocation) {
  command->add_option("--wait", invocation->wait, "wait so many seconds for the daemon to be healthy")
      ->check(CLI::Range(0.001, 86400.0));
}

void addStacks(CLI::App* command, Invocation* invocation) {
  command->add_flag("--stacks", invocation->stacks, "and the stacks of the workers' threads");
}

void addGrace(CLI::App* command, Invocation* invocation) {
  command->add_option("--grace", invocation->grace, "seconds for which the sessions may go on")
      ->check(CLI::Range(0.001, 86400.0))
      ->capture_default_str();
}

constexpr std::array kCommands{
    Command{"status", "health, workers, sessions and counts of the daemon", showStatus, addWait},
    Command{"workers", "the workers", showWorkers, nullptr},
    Command{"sessions", "the clients that are connected", showSessions, nullptr},
    Command{"operators", "the oldest operators in flight", showOperators, nullptr},
    Command{"stuck", "what each worker runs, since when, and which rank it waits for", showStuck, addStacks},
    Command{"stop", "stop the daemon as SIGTERM does, and wait until it is gone", stopAtOnce, nullptr},
    Command{"drain", "stop it when its sessions have ended; it takes no new ones meanwhile", drainDaemon, addGrace},
    Command{"version", "versions of dtorchctl and of the daemon", showVersion, nullptr},
};

}  // namespace

int runCtl(int argc, const char* const* argv, std::ostream& out, std::ostream& err) {
  Invocation invocation{out, err};
  CLI::App app(
      "Shows and stops a dtorchd. Exit code: 0 healthy, 1 degraded, starting, draining or stopping, 2 unreachable or "
      "refused.",
      "dtorchctl");
  app.require_subcommand(1);
  app.fallthrough();
  app.add_option("--socket", invocation.socket,
                 "the daemon's socket, or host:port; default: $DTORCH_SOCKET, else where dtorchd puts it");
  app.add_option("--timeout", invocation.timeout,
                 "seconds to wait for an answer (1; for stacks 5), or for the daemon's end (30, after the grace)")
      ->check(CLI::Range(0.001, 86400.0));
  app.add_flag("--json", invocation.json, "print JSON");
  int (*run)(const Invocation&) = nullptr;
  for (const Command& command : kCommands) {
    CLI::App* sub = app.add_subcommand(command.name, command.help);
    sub->callback([&run, &command] { run = command.run; });
    if (command.addOptions != nullptr) command.addOptions(sub, &invocation);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error, out, err) == 0 ? kExitHealthy : kExitUnreachable;
  }
  const absl::Status usable = checkAddress(invocation.address());
  return usable.ok() ? run(invocation) : invocation.fail(usable);
}

}  // namespace dtorch
