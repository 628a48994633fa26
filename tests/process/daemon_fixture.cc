#include "tests/process/daemon_fixture.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/operators.h"
#include "client/ctl/daemon_client.h"
#include "tests/catch.h"

namespace dtorch {
namespace {

namespace fs = std::filesystem;
using std::chrono::steady_clock;

constexpr std::chrono::seconds kStartTimeout(90);
constexpr std::chrono::seconds kStopTimeout(30);

std::string makeFolder() {
  std::string pattern = "/tmp/dtorch-test-XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  return pattern;
}

std::vector<std::string> filesOf(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

/// Names in /dev/shm, without those of tests that play strangers beside this one.
std::vector<std::string> sharedMemoryNames() {
  std::vector<std::string> names = filesOf("/dev/shm");
  std::erase_if(names, [](const std::string& name) { return absl::StartsWith(name, kStrangersPrefix); });
  return names;
}

}  // namespace

std::string readFile(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

pid_t startProgram(const std::vector<std::string>& command, const std::string& output) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  std::vector<char*> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const absl::string_view text = *variable;
    if (!absl::StartsWith(text, "DTORCH_") && !absl::StartsWith(text, "NOTIFY_SOCKET"))
      environment.push_back(*variable);
  }
  environment.push_back(nullptr);
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&files, 1, output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  ::posix_spawn_file_actions_adddup2(&files, 1, 2);
  pid_t pid = 0;
  const int error = ::posix_spawn(&pid, arguments.front(), &files, nullptr, arguments.data(), environment.data());
  ::posix_spawn_file_actions_destroy(&files);
  if (error != 0) throw std::runtime_error(absl::StrCat("cannot start ", command.front(), ": error ", error));
  return pid;
}

std::optional<int> waitForChild(pid_t pid, std::chrono::milliseconds timeout) {
  const int handle = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  pollfd request{handle, POLLIN, 0};
  const int ready = ::poll(&request, 1, static_cast<int>(timeout.count()));
  ::close(handle);
  int status = 0;
  if (ready <= 0 || ::waitpid(pid, &status, 0) != pid) return std::nullopt;
  return status;
}

absl::StatusOr<double> sumOfOnes(Session& session) {
  const Tensor ones =
      session.call("aten::ones", {Sizes{8}}, {.mesh = session.mesh(), .placements = {Placement::shard(0)}});
  const absl::StatusOr<HostTensor> sum = session.call("aten::sum", {ones}).get().wait(std::chrono::seconds(20));
  if (!sum.ok()) return sum.status();
  return sum->item();
}

bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

std::string binFolder() { return DTORCH_BIN_DIR; }

ProgramResult runProgram(const std::vector<std::string>& command, std::chrono::seconds timeout) {
  const std::string folder = makeFolder();
  const std::string output = folder + "/output";
  const pid_t pid = startProgram(command, output);
  std::optional<int> status = waitForChild(pid, timeout);
  if (!status) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  ProgramResult result{status && WIFEXITED(*status) ? WEXITSTATUS(*status) : -1, readFile(output)};
  fs::remove_all(folder);
  return result;
}

DaemonFixture::DaemonFixture(const Options& options) : folder_(makeFolder()), sharedMemory_(sharedMemoryNames()) {
  // What the daemon leaves behind becomes this process's child, so that it can be found.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  std::vector<std::string> command = options.prefix;
  for (const std::string& word : {binFolder() + "/dtorchd", std::string("--runtime.dir"), folder_,
                                  std::string("--workers.count"), absl::StrCat(options.workers),
                                  std::string("--workers.mode"), std::string(options.threads ? "thread" : "process")}) {
    command.push_back(word);
  }
  command.insert(command.end(), options.flags.begin(), options.flags.end());
  pid_ = startProgram(command, folder_ + "/log");
  const auto reply = DaemonClient(socket()).waitUntilHealthy(steady_clock::now() + kStartTimeout);
  if (reply.ok() && reply->health() == v1::HEALTH_HEALTHY) return;
  const std::string text = absl::StrCat("dtorchd is not healthy: ", reply.status().message(), "\n", log());
  reapDescendants();
  fs::remove_all(folder_);
  throw std::runtime_error(text);
}

DaemonFixture::~DaemonFixture() {
  try {
    stop();
  } catch (...) {  // a failed REQUIRE; the test is reported as failed all the same
  }
  reapDescendants();
  fs::remove_all(folder_);
}

std::shared_ptr<Session> DaemonFixture::connect() const {
  auto session = Session::connect({socket(), std::chrono::seconds(10), "test"});
  INFO(session.status().message());
  REQUIRE(session.ok());
  return *session;
}

v1::StatusReply DaemonFixture::status() const {
  const auto reply = DaemonClient(socket()).status(steady_clock::now() + std::chrono::seconds(5));
  INFO(reply.status().message());
  REQUIRE(reply.ok());
  return *reply;
}

void DaemonFixture::stop() {
  if (pid_ == 0) return;
  ::kill(pid_, SIGTERM);
  const std::optional<int> status = waitForEnd(kStopTimeout);
  INFO(log());
  CHECK(status == 0);
  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);  // no orphan
  for (const std::string& name : filesOf(folder_)) CHECK(name == "log");
  CHECK(sharedMemoryNames() == sharedMemory_);
}

void DaemonFixture::kill(int signal) {
  if (pid_ != 0) ::kill(pid_, signal);
}

std::optional<int> DaemonFixture::waitForEnd(std::chrono::seconds timeout) {
  if (pid_ == 0) return ended_;
  ended_ = waitForChild(pid_, timeout);
  if (ended_) pid_ = 0;
  return ended_;
}

std::string DaemonFixture::log() const { return readFile(folder_ + "/log"); }

void DaemonFixture::reapDescendants() {
  if (pid_ != 0) {
    ::kill(pid_, SIGKILL);
    waitForEnd(kStopTimeout);
  }
  // The daemon's orphans, which are children now. They end with their daemon; whoever does not is killed.
  const auto children = [] {
    std::vector<pid_t> pids;
    std::istringstream list(readFile(absl::StrCat("/proc/self/task/", ::getpid(), "/children")));
    for (pid_t child = 0; list >> child;) pids.push_back(child);
    return pids;
  };
  for (const pid_t child : children()) {
    if (waitForChild(child, std::chrono::seconds(5))) continue;
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
}

std::uint64_t sharedMemoryInUse() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  std::uint64_t kib = 0;
  while (meminfo >> key >> kib) {
    if (key == "Shmem:") return kib * 1024;
    meminfo.ignore(100, '\n');
  }
  return 0;
}

}  // namespace dtorch
