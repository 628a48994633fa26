#pragma once
#include <sys/types.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>

#include "daemon/file_descriptor.h"

namespace dtorch {

/// A new folder of mode 0700 under /tmp. Owns: it and what is in it, removed at the end.
class TempDir {
 public:
  TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir();
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// This test program run once more, as another process that runs the hidden test case named `role` with `environment`
/// added. Owns: the process, which is killed at the end, and its standard input and output.
class RoleProcess {
 public:
  RoleProcess(const std::string& role, const std::map<std::string, std::string>& environment);
  RoleProcess(const RoleProcess&) = delete;
  RoleProcess& operator=(const RoleProcess&) = delete;
  ~RoleProcess();

  pid_t pid() const { return pid_; }
  /// Its next line of output; nullopt: it closed its output, or wrote none within `limit`.
  std::optional<std::string> readLine(std::chrono::milliseconds limit = std::chrono::seconds(20));
  void writeLine(const std::string& line);
  void closeInput() { input_.reset(); }
  void signal(int number);
  /// Its wait status; nullopt: it did not end within `limit`.
  std::optional<int> wait(std::chrono::milliseconds limit = std::chrono::seconds(20));

 private:
  pid_t pid_ = 0;
  FileDescriptor pidFd_;
  FileDescriptor input_;
  FileDescriptor output_;
  std::string buffered_;
};

// For the hidden test cases that are roles.
std::string roleVariable(const std::string& name);
void roleSays(const std::string& line);
/// False at the end of the input.
bool roleHears(std::string* line);

int openDescriptors();
/// One of 127.0.0.1 that nobody has at the moment.
int freeTcpPort();

}  // namespace dtorch
