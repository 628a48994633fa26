// What systemd hears, on a socket of the test's own.
#include "daemon/notify.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "daemon/file_descriptor.h"
#include "tests/catch.h"
#include "tests/daemon/rpc_processes.h"

namespace dtorch {
namespace {

std::string receive(int fd) {
  pollfd readable{.fd = fd, .events = POLLIN, .revents = 0};
  if (::poll(&readable, 1, 10'000) <= 0) return "nothing";
  char text[512];
  const ssize_t bytes = ::recv(fd, text, sizeof text, 0);
  return bytes < 0 ? "error" : std::string(text, static_cast<std::size_t>(bytes));
}

TEST_CASE("the notify protocol, and its absence") {
  ::unsetenv("NOTIFY_SOCKET");
  ::unsetenv("WATCHDOG_USEC");
  notifyReady("nobody listens");
  notifyWatchdog();
  CHECK_FALSE(watchdogInterval());

  const TempDir dir;
  const FileDescriptor fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, dir.file("notify").c_str(), sizeof address.sun_path - 1);
  REQUIRE(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  ::setenv("NOTIFY_SOCKET", dir.file("notify").c_str(), 1);

  notifyReady("2 workers\nREADY=0");
  CHECK(receive(fd.get()) == "READY=1\nSTATUS=2 workers READY=0");
  notifyStatus("degraded");
  CHECK(receive(fd.get()) == "STATUS=degraded");
  notifyWatchdog();
  CHECK(receive(fd.get()) == "WATCHDOG=1");
  notifyStopping();
  CHECK(receive(fd.get()) == "STOPPING=1");

  ::setenv("WATCHDOG_USEC", "3000000", 1);
  ::setenv("WATCHDOG_PID", std::to_string(::getpid()).c_str(), 1);
  CHECK(watchdogInterval() == std::chrono::seconds(3));
  ::setenv("WATCHDOG_PID", "1", 1);
  CHECK_FALSE(watchdogInterval());
}

}  // namespace
}  // namespace dtorch
