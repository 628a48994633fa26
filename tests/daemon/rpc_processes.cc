#include "tests/daemon/rpc_processes.h"

#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <stdexcept>
#include <vector>

namespace dtorch {

TempDir::TempDir() {
  char path[] = "/tmp/dtorch-rpc-test-XXXXXX";
  if (::mkdtemp(path) == nullptr) std::abort();
  path_ = path;
}
TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

RoleProcess::RoleProcess(const std::string& role, const std::map<std::string, std::string>& environment) {
  int in[2];
  int out[2];
  if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) std::abort();
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);

  std::vector<std::string> arguments{"/proc/self/exe", role, "--out", "/dev/null"};
  std::vector<std::string> variables;
  for (char** each = environ; *each != nullptr; ++each) variables.emplace_back(*each);
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
  std::vector<char*> argv;
  for (std::string& each : arguments) argv.push_back(each.data());
  argv.push_back(nullptr);
  std::vector<char*> envp;
  for (std::string& each : variables) envp.push_back(each.data());
  envp.push_back(nullptr);

  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const int error = ::posix_spawn(&pid_, self.c_str(), &actions, nullptr, argv.data(), envp.data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(in[0]);
  ::close(out[1]);
  input_ = FileDescriptor(in[1]);
  output_ = FileDescriptor(out[0]);
  if (error != 0) std::abort();
  pidFd_ = FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
}

RoleProcess::~RoleProcess() {
  if (pid_ == 0) return;
  signal(SIGKILL);
  wait();
}

std::optional<std::string> RoleProcess::readLine(std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (;;) {
    if (const std::size_t end = buffered_.find('\n'); end != std::string::npos) {
      std::string line = buffered_.substr(0, end);
      buffered_.erase(0, end + 1);
      return line;
    }
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd readable{.fd = output_.get(), .events = POLLIN, .revents = 0};
    if (left.count() <= 0 || ::poll(&readable, 1, static_cast<int>(left.count())) <= 0) return std::nullopt;
    char chunk[4096];
    const ssize_t bytes = ::read(output_.get(), chunk, sizeof chunk);
    if (bytes <= 0) return std::nullopt;
    buffered_.append(chunk, static_cast<std::size_t>(bytes));
  }
}

void RoleProcess::writeLine(const std::string& line) {
  const std::string text = line + "\n";
  if (::write(input_.get(), text.data(), text.size()) < 0) std::abort();
}

void RoleProcess::signal(int number) { ::kill(pid_, number); }

std::optional<int> RoleProcess::wait(std::chrono::milliseconds limit) {
  pollfd ended{.fd = pidFd_.get(), .events = POLLIN, .revents = 0};
  if (::poll(&ended, 1, static_cast<int>(limit.count())) <= 0) return std::nullopt;
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = 0;
  return status;
}

std::string roleVariable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? "" : value;
}

void roleSays(const std::string& line) {
  const std::string text = line + "\n";
  if (::write(STDOUT_FILENO, text.data(), text.size()) < 0) std::abort();
}

bool roleHears(std::string* line) { return static_cast<bool>(std::getline(std::cin, *line)); }

int freeTcpPort() {
  const FileDescriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw std::runtime_error("no TCP port is free");
  }
  return ntohs(address.sin_port);
}

int openDescriptors() {
  int count = 0;
  DIR* const folder = ::opendir("/proc/self/fd");
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

}  // namespace dtorch
