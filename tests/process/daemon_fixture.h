#pragma once
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/cpp/session.h"
#include "dtorch/v1/client.pb.h"

namespace dtorch {

/// Begins the names of what a test leaves in /dev/shm for a while, as somebody else might.
inline constexpr const char* kStrangersPrefix = "dtorch-of-a-stranger-";

/// A real dtorchd with real workers, in a runtime directory of its own; healthy once constructed.
/// Owns: the process and all that it starts. Destruction stops it, by force where it must, and checks that nothing is
/// left.
class DaemonFixture {
 public:
  struct Options {
    int workers = 2;
    bool threads = false;                 // worker threads instead of processes
    std::vector<std::string> flags = {};  // more of dtorchd's: {"--log.level", "debug"}
    /// Words before the command line, of a program that becomes it: {"/usr/bin/env", "http_proxy=http://nowhere"}.
    std::vector<std::string> prefix = {};
  };

  explicit DaemonFixture(const Options& options);
  DaemonFixture() : DaemonFixture(Options()) {}
  ~DaemonFixture();
  DaemonFixture(const DaemonFixture&) = delete;
  DaemonFixture& operator=(const DaemonFixture&) = delete;

  std::shared_ptr<Session> connect() const;
  v1::StatusReply status() const;

  /// SIGTERM, then the end: exit code 0, and no process, socket or shared memory left. Idempotent.
  void stop();
  void kill(int signal);
  /// Waits for the end of a daemon that was told to end; how it ended, as waitpid tells it. nullopt: still there.
  std::optional<int> waitForEnd(std::chrono::seconds timeout);

  pid_t pid() const { return pid_; }
  const std::string& folder() const { return folder_; }
  std::string socket() const { return folder_ + "/dtorchd.sock"; }
  /// What the daemon and its workers have printed.
  std::string log() const;

 private:
  void reapDescendants();

  std::string folder_;
  std::vector<std::string> sharedMemory_;  // that was there before
  pid_t pid_ = 0;                          // 0: has been waited for
  std::optional<int> ended_;
};

/// Of 8 ones, Shard(0) over all workers.
absl::StatusOr<double> sumOfOnes(Session& session);
/// Polls, for what has no event of its own.
bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds limit);
/// The folder of dtorchd, dtorch-worker, dtorchctl and the examples.
std::string binFolder();
/// Starts a program whose output goes to the file `output`, without what the environment would tell a daemon or client.
pid_t startProgram(const std::vector<std::string>& command, const std::string& output);
/// Waits for a child's end; its wait status. nullopt: it has not ended in time.
std::optional<int> waitForChild(pid_t pid, std::chrono::milliseconds timeout);
std::string readFile(const std::string& path);
/// Runs a program with its outputs joined; what it printed, and its exit code.
struct ProgramResult {
  int exitCode;
  std::string output;
};
ProgramResult runProgram(const std::vector<std::string>& command, std::chrono::seconds timeout);
/// Bytes, of all processes of this machine.
std::uint64_t sharedMemoryInUse();

}  // namespace dtorch
