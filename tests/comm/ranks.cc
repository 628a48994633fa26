#include "tests/comm/ranks.h"

#include <ATen/Parallel.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "comm/store/shared_allocator.h"
#include "tests/catch.h"

namespace dtorch::testing {
namespace {

std::map<std::string, RankBody>& roles() {
  static std::map<std::string, RankBody> all;
  return all;
}

std::string runBody(Rank rank, int size, ThreadGroupManager& manager, const std::string& role,
                    const std::string& argument) {
  RankContext context{rank, size, manager, argument, ""};
  try {
    roles().at(role)(context);
  } catch (const std::exception& e) {
    context.failures += absl::StrCat("threw: ", e.what(), "\n");
  }
  return context.failures;
}

void require(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(absl::StrCat(what, ": ", std::strerror(errno)));
}

void writeAll(int fd, const void* data, std::size_t bytes) {
  require(::write(fd, data, bytes) == static_cast<ssize_t>(bytes), "write to a rank");
}

bool readAll(int fd, void* data, std::size_t bytes) {
  auto* to = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::read(fd, to, bytes);
    if (n <= 0) return false;
    to += n;
    bytes -= static_cast<std::size_t>(n);
  }
  return true;
}

/// A started rank: it says who it is on descriptor 3, is told of its peers on 4, and reports its failures on 3.
struct Child {
  pid_t pid = 0;
  int from = -1;
  int to = -1;
};

Child start(Rank rank, int size, const std::string& role, const std::string& argument,
            std::chrono::milliseconds timeout) {
  std::array<int, 2> from{};
  std::array<int, 2> to{};
  require(::pipe2(from.data(), O_CLOEXEC) == 0 && ::pipe2(to.data(), O_CLOEXEC) == 0, "pipe");
  // Above the numbers that they get in the child, so that neither dup2 closes the other.
  const int out = ::fcntl(from[1], F_DUPFD_CLOEXEC, 100);
  const int in = ::fcntl(to[0], F_DUPFD_CLOEXEC, 100);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out, 3);
  posix_spawn_file_actions_adddup2(&actions, in, 4);
  std::vector<std::string> environment = {absl::StrCat("DTORCH_TEST_RANK=", rank),
                                          absl::StrCat("DTORCH_TEST_SIZE=", size),
                                          absl::StrCat("DTORCH_TEST_ROLE=", role),
                                          absl::StrCat("DTORCH_TEST_ARGUMENT=", argument),
                                          absl::StrCat("DTORCH_TEST_TIMEOUT_MS=", timeout.count()),
                                          "OMP_NUM_THREADS=1"};
  std::vector<char*> envp;
  for (std::string& entry : environment) envp.push_back(entry.data());
  for (char** entry = environ; *entry != nullptr; ++entry) envp.push_back(*entry);
  envp.push_back(nullptr);
  std::string program = "/proc/self/exe";
  std::string test = "runs as one rank";
  std::string quiet = "--out=/dev/null";
  std::array<char*, 4> argv = {program.data(), test.data(), quiet.data(), nullptr};
  Child child;
  const int error = ::posix_spawn(&child.pid, program.c_str(), &actions, nullptr, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  for (const int fd : {out, in, from[1], to[0]}) ::close(fd);
  require(error == 0, "posix_spawn");
  child.from = from[0];
  child.to = to[1];
  return child;
}

std::vector<RankOutcome> runProcesses(int size, const std::string& role, const std::string& argument,
                                      std::chrono::milliseconds timeout) {
  std::vector<Child> children;
  for (Rank rank = 0; rank < size; ++rank) children.push_back(start(rank, size, role, argument, timeout));
  std::vector<PeerRef> peers(static_cast<std::size_t>(size));
  bool complete = true;
  for (std::size_t i = 0; i < peers.size(); ++i)
    complete = readAll(children[i].from, &peers[i], sizeof(PeerRef)) && complete;
  for (const Child& child : children) {
    if (complete) writeAll(child.to, peers.data(), peers.size() * sizeof(PeerRef));
  }
  std::vector<RankOutcome> outcomes;
  for (const Child& child : children) {
    RankOutcome outcome;
    std::array<char, 4096> text{};
    for (ssize_t n = 0; (n = ::read(child.from, text.data(), text.size())) > 0;) {
      outcome.failures.append(text.data(), static_cast<std::size_t>(n));
    }
    ::close(child.from);
    ::close(child.to);
    ::waitpid(child.pid, &outcome.status, 0);
    outcomes.push_back(std::move(outcome));
  }
  return outcomes;
}

std::vector<RankOutcome> runThreads(int size, const std::string& role, const std::string& argument,
                                    std::chrono::milliseconds timeout) {
  at::set_num_threads(1);  // ranks are the parallelism here, as in processes
  std::vector<std::unique_ptr<ThreadGroupManager>> managers;
  std::vector<PeerRef> peers;
  for (Rank rank = 0; rank < size; ++rank) {
    managers.push_back(*ThreadGroupManager::create(rank, timeout));
    peers.push_back(managers.back()->self());
  }
  for (auto& manager : managers) manager->setPeers(peers, 1);
  std::vector<RankOutcome> outcomes(managers.size());
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto i = static_cast<std::size_t>(rank);
      outcomes[i].failures = runBody(rank, size, *managers[i], role, argument);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::vector<Rank> RankContext::all() const {
  std::vector<Rank> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

ThreadGroup& RankContext::world() {
  auto group = manager.group(all());
  if (!group.ok()) throw std::runtime_error(group.status().ToString());
  return **group;
}

void RankContext::check(bool condition, const std::string& what) {
  if (!condition) absl::StrAppend(&failures, "rank ", rank, ": ", what, "\n");
}

RankRole::RankRole(const std::string& name, RankBody body) { roles()[name] = std::move(body); }

std::vector<RankOutcome> runRanks(Mode mode, int size, const std::string& role, const std::string& argument,
                                  std::chrono::milliseconds timeout) {
  return mode == Mode::kThreads ? runThreads(size, role, argument, timeout)
                                : runProcesses(size, role, argument, timeout);
}

void expectRanks(Mode mode, int size, const std::string& role, const std::string& argument) {
  const auto outcomes = runRanks(mode, size, role, argument);
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    INFO(size << " " << name(mode) << ", rank " << i << ": " << outcomes[i].failures);
    CHECK(outcomes[i].status == 0);
    CHECK(outcomes[i].failures.empty());
  }
}

TEST_CASE("runs as one rank", "[.]") {
  int rank = 0;
  int size = 0;
  int timeout = 0;
  REQUIRE(absl::SimpleAtoi(environment("DTORCH_TEST_RANK"), &rank));
  REQUIRE(absl::SimpleAtoi(environment("DTORCH_TEST_SIZE"), &size));
  REQUIRE(absl::SimpleAtoi(environment("DTORCH_TEST_TIMEOUT_MS"), &timeout));
  if (environment("DTORCH_TEST_ARGUMENT").starts_with("shared")) installSharedAllocator();
  auto manager = ThreadGroupManager::create(rank, std::chrono::milliseconds(timeout));
  REQUIRE(manager.ok());
  writeAll(3, &(*manager)->self(), sizeof(PeerRef));
  std::vector<PeerRef> peers(static_cast<std::size_t>(size));
  REQUIRE(readAll(4, peers.data(), peers.size() * sizeof(PeerRef)));
  (*manager)->setPeers(peers, 1);
  const std::string failures =
      runBody(rank, size, **manager, environment("DTORCH_TEST_ROLE"), environment("DTORCH_TEST_ARGUMENT"));
  if (!failures.empty()) writeAll(3, failures.data(), std::min<std::size_t>(failures.size(), 60000));
}

}  // namespace dtorch::testing
