#include "client/ctl/report.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "proto/codec.h"

namespace dtorch {
namespace {

constexpr std::size_t kMaxText = 200;  // bytes of a cell

std::string formatBytes(std::int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  auto value = static_cast<double>(bytes);
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return unit == 0 ? absl::StrFormat("%.0f %s", value, kUnits[unit]) : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string formatDuration(std::int64_t ms) {
  if (ms < 60'000) return absl::StrFormat("%.1f s", static_cast<double>(ms) / 1000);
  const std::int64_t minutes = ms / 60'000;
  if (minutes < 60) return absl::StrCat(minutes, " min");
  if (minutes < 48 * 60) return absl::StrCat(minutes / 60, " h ", minutes % 60, " min");
  return absl::StrCat(minutes / (24 * 60), " d ", minutes / 60 % 24, " h");
}

/// Text from the wire, fit for one cell of a terminal.
std::string cell(const std::string& text) {
  std::string result = printable(text, kMaxText);
  for (char& c : result) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
  }
  return result;
}

/// Columns that a terminal needs for UTF-8 text of narrow characters.
std::size_t width(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

}  // namespace

std::string formatTable(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::string> titles = header;
  std::vector<bool> right;
  for (std::string& title : titles) {
    right.push_back(title.front() == '>');
    if (right.back()) title.erase(0, 1);
  }
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < titles.size(); ++c) {
    widths.push_back(width(titles[c]));
    for (const auto& row : rows) widths.back() = std::max(widths.back(), width(row[c]));
  }
  std::string text;
  const auto append = [&](const std::vector<std::string>& row) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string blanks(widths[c] - width(row[c]), ' ');
      absl::StrAppend(&line, c == 0 ? "" : "  ", right[c] ? blanks : "", row[c], right[c] ? "" : blanks);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  };
  append(titles);
  for (const auto& row : rows) append(row);
  return text;
}

absl::string_view name(v1::Health health) {
  switch (health) {
    case v1::HEALTH_STARTING:
      return "starting";
    case v1::HEALTH_HEALTHY:
      return "healthy";
    case v1::HEALTH_DEGRADED:
      return "degraded";
    case v1::HEALTH_STOPPING:
      return "stopping";
    case v1::HEALTH_DRAINING:
      return "draining";
    default:
      return "unknown";
  }
}

std::string formatSummary(const v1::StatusReply& status) {
  return absl::StrCat("dtorchd ", cell(status.version()), " is ", name(status.health()), ": pid ", status.pid(),
                      ", up ", formatDuration(status.uptime_ms()), ", ", formatBytes(status.resident_bytes()),
                      " resident\n", "operators: ", status.operators_done(), " done, ", status.operators_failed(),
                      " failed",
                      status.unobserved_errors() == 0
                          ? ""
                          : absl::StrCat(", ", status.unobserved_errors(), " failures that no client has been told of"),
                      "\n",
                      status.sessions_lost() == 0
                          ? ""
                          : absl::StrCat("sessions lost: ", status.sessions_lost(),
                                         ", whose clients ended or did not answer, without having closed them\n"));
}

std::string formatWorkers(const v1::StatusReply& status) {
  std::vector<std::vector<std::string>> rows;
  for (const v1::WorkerStatus& worker : status.workers()) {
    rows.push_back(
        {absl::StrCat(worker.rank()), cell(worker.state()), absl::StrCat(worker.pid()), cell(worker.device()),
         worker.heartbeat_age_ms() < 0 ? "none" : absl::StrCat(formatDuration(worker.heartbeat_age_ms()), " ago"),
         absl::StrCat(worker.queued()), absl::StrCat(worker.done()), formatBytes(worker.resident_bytes()),
         formatBytes(worker.tensor_bytes()), formatBytes(worker.allocated_bytes()),
         formatBytes(worker.peak_allocated_bytes()), absl::StrCat(worker.restarts()), cell(worker.detail())});
  }
  return formatTable({">WORKER", "STATE", ">PID", "DEVICE", ">HEARTBEAT", ">QUEUED", ">DONE", ">MEMORY", ">TENSORS",
                      ">ALLOCATED", ">PEAK", ">RESTARTS", "DETAIL"},
                     rows);
}

std::string formatSessions(const v1::StatusReply& status) {
  if (status.sessions().empty()) return "no sessions\n";
  std::vector<std::vector<std::string>> rows;
  for (const v1::SessionStatus& session : status.sessions()) {
    rows.push_back({absl::StrCat(session.id()), cell(session.client()), absl::StrCat(session.uid()),
                    absl::StrCat(session.pid()), formatDuration(session.age_ms()), absl::StrCat(session.tensors()),
                    formatBytes(session.tensor_bytes()), absl::StrCat(session.operators()),
                    absl::StrCat(session.failed()), absl::StrCat(session.futures())});
  }
  return formatTable(
      {">SESSION", "CLIENT", ">UID", ">PID", ">AGE", ">TENSORS", ">BYTES", ">OPERATORS", ">FAILED", ">WAITING"}, rows);
}

std::string formatStuck(const v1::StatusReply& status) {
  std::vector<std::vector<std::string>> rows;
  for (const v1::WorkerStatus& worker : status.workers()) {
    const bool runs = worker.current() != 0;
    std::vector<std::string> row = {absl::StrCat(worker.rank()),
                                    cell(worker.state()),
                                    runs ? absl::StrCat(worker.current()) : "",
                                    runs ? cell(worker.current_name()) : "nothing",
                                    runs ? formatDuration(worker.current_ms()) : "",
                                    runs ? cell(worker.current_site()) : ""};
    if (worker.waits().empty()) {
      row.insert(row.end(), {"", "", ""});
      rows.push_back(row);
    }
    for (const v1::RankWait& wait : worker.waits()) {
      rows.push_back(row);
      rows.back().insert(rows.back().end(),
                         {absl::StrCat("rank ", wait.rank()), formatDuration(wait.ms()), cell(wait.call())});
    }
  }
  return formatTable({">WORKER", "STATE", ">NUMBER", "RUNS", ">FOR", "CALLED AT", "WAITS FOR", ">SINCE", "IN"}, rows);
}

std::string formatStacks(const v1::StatusReply& status) {
  std::string text;
  for (const v1::WorkerStatus& worker : status.workers()) {
    absl::StrAppend(&text, "\nworker ", worker.rank(), ", pid ", worker.pid(), ", ", cell(worker.state()),
                    worker.stacks().empty() ? ": its stacks have not come" : "", "\n");
    // By their frames: pools have many threads that wait in the same place.
    std::map<std::vector<std::string>, std::vector<std::string>> threads;
    for (const v1::ThreadStack& stack : worker.stacks()) {
      threads[{stack.frames().begin(), stack.frames().end()}].push_back(
          absl::StrCat(cell(stack.name()), " (", stack.tid(), ")"));
    }
    for (const auto& [frames, names] : threads) {
      absl::StrAppend(&text, "  ", absl::StrJoin(names, ", "), "\n");
      if (frames.empty()) absl::StrAppend(&text, "    blocks signals, or does not answer\n");
      for (const std::string& frame : frames) absl::StrAppend(&text, "    ", cell(frame), "\n");
    }
  }
  return text;
}

std::string formatOperators(const v1::StatusReply& status) {
  if (status.in_flight().empty()) return "no operators in flight\n";
  std::vector<std::vector<std::string>> rows;
  for (const v1::OperatorStatus& op : status.in_flight()) {
    rows.push_back({absl::StrCat(op.number()), absl::StrCat(op.session()), formatDuration(op.age_ms()), cell(op.name()),
                    cell(op.site())});
  }
  const std::uint64_t more = status.operators_in_flight() - static_cast<std::uint64_t>(status.in_flight_size());
  return formatTable({">NUMBER", ">SESSION", ">AGE", "OPERATOR", "CALLED AT"}, rows) +
         (more > 0 ? absl::StrCat("and ", more, " more\n") : "");
}

nlohmann::json summaryJson(const v1::StatusReply& status) {
  return {{"health", std::string(name(status.health()))},
          {"version", printable(status.version(), kMaxText)},
          {"protocol", status.protocol()},
          {"pid", status.pid()},
          {"uptime_ms", status.uptime_ms()},
          {"resident_bytes", status.resident_bytes()},
          {"operators_done", status.operators_done()},
          {"operators_failed", status.operators_failed()},
          {"operators_in_flight", status.operators_in_flight()},
          {"unobserved_errors", status.unobserved_errors()},
          {"sessions_lost", status.sessions_lost()}};
}

nlohmann::json workersJson(const v1::StatusReply& status) {
  nlohmann::json list = nlohmann::json::array();
  for (const v1::WorkerStatus& worker : status.workers()) {
    list.push_back({{"rank", worker.rank()},
                    {"pid", worker.pid()},
                    {"device", printable(worker.device(), kMaxText)},
                    {"state", printable(worker.state(), kMaxText)},
                    {"heartbeat_age_ms", worker.heartbeat_age_ms()},
                    {"queued", worker.queued()},
                    {"done", worker.done()},
                    {"resident_bytes", worker.resident_bytes()},
                    {"tensor_bytes", worker.tensor_bytes()},
                    {"allocated_bytes", worker.allocated_bytes()},
                    {"peak_allocated_bytes", worker.peak_allocated_bytes()},
                    {"restarts", worker.restarts()},
                    {"detail", printable(worker.detail(), std::string::npos)}});
  }
  return list;
}

nlohmann::json stuckJson(const v1::StatusReply& status) {
  nlohmann::json list = nlohmann::json::array();
  for (const v1::WorkerStatus& worker : status.workers()) {
    nlohmann::json waits = nlohmann::json::array();
    for (const v1::RankWait& wait : worker.waits()) {
      waits.push_back({{"rank", wait.rank()}, {"ms", wait.ms()}, {"call", printable(wait.call(), std::string::npos)}});
    }
    list.push_back({{"rank", worker.rank()},
                    {"state", printable(worker.state(), kMaxText)},
                    {"current", worker.current()},
                    {"current_name", printable(worker.current_name(), kMaxText)},
                    {"current_ms", worker.current_ms()},
                    {"current_site", printable(worker.current_site(), kMaxText)},
                    {"waits", waits}});
  }
  return list;
}

nlohmann::json stacksJson(const v1::StatusReply& status) {
  nlohmann::json list = nlohmann::json::array();
  for (const v1::WorkerStatus& worker : status.workers()) {
    nlohmann::json threads = nlohmann::json::array();
    for (const v1::ThreadStack& stack : worker.stacks()) {
      nlohmann::json frames = nlohmann::json::array();
      for (const std::string& frame : stack.frames()) frames.push_back(printable(frame, kMaxText));
      threads.push_back({{"tid", stack.tid()}, {"name", printable(stack.name(), kMaxText)}, {"frames", frames}});
    }
    list.push_back({{"rank", worker.rank()}, {"pid", worker.pid()}, {"threads", threads}});
  }
  return list;
}

nlohmann::json sessionsJson(const v1::StatusReply& status) {
  nlohmann::json list = nlohmann::json::array();
  for (const v1::SessionStatus& session : status.sessions()) {
    list.push_back({{"id", session.id()},
                    {"client", printable(session.client(), kMaxText)},
                    {"uid", session.uid()},
                    {"pid", session.pid()},
                    {"age_ms", session.age_ms()},
                    {"tensors", session.tensors()},
                    {"tensor_bytes", session.tensor_bytes()},
                    {"operators", session.operators()},
                    {"failed", session.failed()},
                    {"futures", session.futures()},
                    {"redistributions", session.redistributions()}});
  }
  return list;
}

nlohmann::json operatorsJson(const v1::StatusReply& status) {
  nlohmann::json list = nlohmann::json::array();
  for (const v1::OperatorStatus& op : status.in_flight()) {
    list.push_back({{"number", op.number()},
                    {"session", op.session()},
                    {"name", printable(op.name(), kMaxText)},
                    {"site", printable(op.site(), kMaxText)},
                    {"age_ms", op.age_ms()},
                    {"inputs", std::vector<std::uint64_t>(op.inputs().begin(), op.inputs().end())},
                    {"first_output", op.first_output()},
                    {"outputs", op.outputs()}});
  }
  return list;
}

}  // namespace dtorch
