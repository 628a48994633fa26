#include "daemon/notify.h"

#include <systemd/sd-daemon.h>

#include <cstdint>

namespace dtorch {
namespace {

// A status is one line; a line break would end it and start another variable.
std::string oneLine(std::string text) {
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return text;
}

}  // namespace

void notifyReady(const std::string& status) { ::sd_notify(0, ("READY=1\nSTATUS=" + oneLine(status)).c_str()); }
void notifyStatus(const std::string& status) { ::sd_notify(0, ("STATUS=" + oneLine(status)).c_str()); }
void notifyStopping() { ::sd_notify(0, "STOPPING=1"); }
void notifyWatchdog() { ::sd_notify(0, "WATCHDOG=1"); }

std::optional<std::chrono::microseconds> watchdogInterval() {
  std::uint64_t micros = 0;
  if (::sd_watchdog_enabled(0, &micros) <= 0) return std::nullopt;
  return std::chrono::microseconds(micros);
}

}  // namespace dtorch
