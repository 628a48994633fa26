// Who holds an address: pid file and listening sockets, without gRPC.
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/rpc/listening_socket.h"
#include "daemon/rpc/pid_file.h"
#include "daemon/rpc/server.h"
#include "tests/catch.h"
#include "tests/daemon/rpc_processes.h"

namespace dtorch {
namespace {

ServerOptions optionsIn(const std::string& folder) {
  ServerOptions options;
  options.socketPath = folder + "/dtorchd.sock";
  options.pidFile = folder + "/dtorchd.pid";
  return options;
}

mode_t modeOf(const std::string& path) {
  struct stat there {};
  return ::lstat(path.c_str(), &there) == 0 ? there.st_mode & 0777 : 0;
}

bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

// 0, or the errno of a connection attempt.
int connectTo(const std::string& path) {
  const FileDescriptor fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  return ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? 0 : errno;
}

/// Sets the umask for a scope.
struct Umask {
  explicit Umask(mode_t mask) : old(::umask(mask)) {}
  ~Umask() { ::umask(old); }
  mode_t old;
};

TEST_CASE("role: bind", "[.]") {
  std::string line;
  roleSays("there");
  roleHears(&line);
  const auto server = Server::bind(optionsIn(roleVariable("DTORCH_TEST_DIR")));
  roleSays(server.ok() ? "won" : server.status().ToString());
  roleHears(&line);
}

TEST_CASE("role: connect as nobody", "[.]") {
  if (::setgid(65534) != 0 || ::setuid(65534) != 0) return roleSays("cannot change user");
  roleSays(std::strerror(connectTo(roleVariable("DTORCH_TEST_SOCKET"))));
}

TEST_CASE("a folder and a socket are private from birth, whatever the umask") {
  for (const mode_t mask : {0, 022, 077}) {
    const TempDir dir;
    const Umask umask(mask);
    const ServerOptions options = optionsIn(dir.file("a/b"));
    const auto server = Server::bind(options);
    REQUIRE(server.ok());
    CHECK(modeOf(dir.file("a")) == 0700);
    CHECK(modeOf(dir.file("a/b")) == 0700);
    CHECK(modeOf(options.socketPath) == 0660);
  }
}

TEST_CASE("another user cannot connect, even where the folder is open to all") {
  if (::geteuid() != 0) {
    WARN("not checked: only root can become another user");
    return;
  }
  const TempDir dir;
  const auto server = Server::bind(optionsIn(dir.path()));
  REQUIRE(server.ok());
  const std::map<std::string, std::string> environment{{"DTORCH_TEST_SOCKET", dir.file("dtorchd.sock")}};
  CHECK(RoleProcess("role: connect as nobody", environment).readLine() == std::strerror(EACCES));
  REQUIRE(::chmod(dir.path().c_str(), 0755) == 0);
  CHECK(RoleProcess("role: connect as nobody", environment).readLine() == std::strerror(EACCES));
}

TEST_CASE("a folder of another user is refused") {
  if (::geteuid() != 0) {
    WARN("not checked: only root can give a folder away");
    return;
  }
  const TempDir dir;
  REQUIRE(::chown(dir.path().c_str(), 65534, 65534) == 0);
  const auto server = Server::bind(optionsIn(dir.path()));
  CHECK(server.status().code() == absl::StatusCode::kPermissionDenied);
  CHECK(absl::StrContains(server.status().message(), dir.path()));
}

TEST_CASE("everything is removed at the end") {
  const TempDir dir;
  const ServerOptions options = optionsIn(dir.path());
  auto server = Server::bind(options);
  REQUIRE(server.ok());
  std::string pid;
  std::ifstream(options.pidFile) >> pid;
  CHECK(pid == std::to_string(::getpid()));
  server->reset();
  CHECK_FALSE(exists(options.socketPath));
  CHECK_FALSE(exists(options.pidFile));
}

TEST_CASE("a second daemon is refused, in this process and in another, and the first goes on") {
  const TempDir dir;
  const auto server = Server::bind(optionsIn(dir.path()));
  REQUIRE(server.ok());
  const auto second = Server::bind(optionsIn(dir.path()));
  CHECK(second.status().code() == absl::StatusCode::kAlreadyExists);

  RoleProcess other("role: bind", {{"DTORCH_TEST_DIR", dir.path()}});
  other.writeLine("go");
  CHECK(other.readLine() == "there");
  const std::string answer = other.readLine().value_or("");
  CHECK(absl::StartsWith(answer, "ALREADY_EXISTS"));
  CHECK(absl::StrContains(answer, absl::StrCat("pid ", ::getpid(), " ")));
  other.closeInput();
  CHECK(other.wait() == 0);
  CHECK(connectTo(dir.file("dtorchd.sock")) == 0);
}

TEST_CASE("after kill -9 the next start works") {
  const TempDir dir;
  RoleProcess first("role: bind", {{"DTORCH_TEST_DIR", dir.path()}});
  first.writeLine("go");
  CHECK(first.readLine() == "there");
  REQUIRE(first.readLine() == "won");
  first.signal(SIGKILL);
  REQUIRE(first.wait());
  REQUIRE(exists(dir.file("dtorchd.sock")));
  REQUIRE(exists(dir.file("dtorchd.pid")));
  const auto server = Server::bind(optionsIn(dir.path()));
  CHECK(server.ok());
  CHECK(connectTo(dir.file("dtorchd.sock")) == 0);
}

TEST_CASE("of two starts at one instant exactly one wins, and the other names it") {
  constexpr int kRounds = 20;
  const TempDir dir;
  for (int round = 0; round < kRounds; ++round) {
    // Odd rounds meet what a killed daemon left behind, even ones an empty folder.
    RoleProcess a("role: bind", {{"DTORCH_TEST_DIR", dir.path()}});
    RoleProcess b("role: bind", {{"DTORCH_TEST_DIR", dir.path()}});
    REQUIRE(a.readLine() == "there");
    REQUIRE(b.readLine() == "there");
    a.writeLine("go");
    b.writeLine("go");
    const std::string saidA = a.readLine().value_or("");
    const std::string saidB = b.readLine().value_or("");
    CAPTURE(round, saidA, saidB);
    CHECK((saidA == "won") != (saidB == "won"));
    RoleProcess& winner = saidA == "won" ? a : b;
    const std::string& loser = saidA == "won" ? saidB : saidA;
    CHECK(absl::StartsWith(loser, "ALREADY_EXISTS"));
    CHECK(absl::StrContains(loser, absl::StrCat("pid ", winner.pid(), " ")));
    CHECK(connectTo(dir.file("dtorchd.sock")) == 0);
    if (round % 2 == 0) winner.signal(SIGKILL);
    a.closeInput();
    b.closeInput();
    REQUIRE(a.wait());
    REQUIRE(b.wait());
  }
}

TEST_CASE("what is not a socket is never removed") {
  const TempDir dir;
  const ServerOptions options = optionsIn(dir.path());
  std::ofstream(options.socketPath) << "precious";
  const auto server = Server::bind(options);
  CHECK(server.status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(absl::StrContains(server.status().message(), options.socketPath));
  std::string text;
  std::ifstream(options.socketPath) >> text;
  CHECK(text == "precious");
  CHECK_FALSE(exists(options.pidFile));

  ::unlink(options.socketPath.c_str());
  REQUIRE(::symlink("/etc/passwd", options.socketPath.c_str()) == 0);
  CHECK(Server::bind(options).status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(exists("/etc/passwd"));
}

TEST_CASE("a socket on which somebody else listens is not taken over, a stale one is") {
  const TempDir dir;
  const std::string path = dir.file("s");
  auto first = ListeningSocket::bindUnix(path, 0600);
  REQUIRE(first.ok());
  const auto second = ListeningSocket::bindUnix(path, 0600);
  CHECK(second.status().code() == absl::StatusCode::kAlreadyExists);
  CHECK(absl::StrContains(second.status().message(), absl::StrCat("process ", ::getpid(), " ")));
  CHECK(connectTo(path) == 0);

  // Renamed and replaced: neither owner removes what is not its own.
  REQUIRE(::rename(path.c_str(), dir.file("moved").c_str()) == 0);
  auto third = ListeningSocket::bindUnix(path, 0600);
  REQUIRE(third.ok());
  first->close();
  CHECK(connectTo(path) == 0);
  CHECK(connectTo(dir.file("moved")) == ECONNREFUSED);
  CHECK(ListeningSocket::bindUnix(dir.file("moved"), 0600).ok());
}

TEST_CASE("107 bytes of path are a socket, 108 are an error with the number") {
  const TempDir dir;
  const std::string longest = dir.file(std::string(ListeningSocket::kMaxUnixPath - dir.path().size() - 1, 'x'));
  REQUIRE(longest.size() == 107);
  CHECK(ListeningSocket::bindUnix(longest, 0600).ok());
  const auto tooLong = ListeningSocket::bindUnix(longest + "x", 0600);
  CHECK(tooLong.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(absl::StrContains(tooLong.status().message(), "108"));
  ServerOptions options = optionsIn(dir.path());
  options.socketPath = longest + "x";
  const auto server = Server::bind(options);
  CHECK(server.status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("TCP is for this host only, and a port has one owner") {
  using absl::StatusCode;
  for (const char* address : {"0.0.0.0:0", "[::]:0", "192.0.2.1:0", "example.com:0", "127.0.0.1.example.com:0", ":0"}) {
    CAPTURE(address);
    CHECK(ListeningSocket::bindLoopback(address).status().code() == StatusCode::kPermissionDenied);
  }
  for (const char* address :
       {"", "localhost", "localhost:", "localhost:x", "localhost:65536", "::1:80", "localhost:-1"}) {
    CAPTURE(address);
    CHECK(ListeningSocket::bindLoopback(address).status().code() == StatusCode::kInvalidArgument);
  }
  const auto socket = ListeningSocket::bindLoopback("localhost:0");
  REQUIRE(socket.ok());
  sockaddr_in bound{};
  socklen_t size = sizeof bound;
  REQUIRE(::getsockname(socket->fd(), reinterpret_cast<sockaddr*>(&bound), &size) == 0);
  const std::string taken = absl::StrCat("127.0.0.1:", ntohs(bound.sin_port));
  const auto second = ListeningSocket::bindLoopback(taken);
  CHECK(second.status().code() == StatusCode::kAlreadyExists);
  CHECK(absl::StrContains(second.status().message(), taken));
}

}  // namespace
}  // namespace dtorch
