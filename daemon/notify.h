#pragma once
#include <chrono>
#include <optional>
#include <string>

namespace dtorch {

// What systemd hears of a service of Type=notify. Without NOTIFY_SOCKET in the environment all of it has no effect.

/// Start-up is over; `status` is the line that `systemctl status` shows.
void notifyReady(const std::string& status);
void notifyStatus(const std::string& status);
/// The orderly end has begun.
void notifyStopping();
/// Sign of life; due at least once in watchdogInterval().
void notifyWatchdog();
/// What the unit's WatchdogSec asks for; nullopt: no watchdog.
std::optional<std::chrono::microseconds> watchdogInterval();

}  // namespace dtorch
