#include "tests/comm/ranks.h"

#include <ATen/Parallel.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
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

using Managers = std::vector<std::unique_ptr<ThreadGroupManager>>;

/// Runs the role as the ranks of `managers`, which know their peers, and returns the failures of each.
std::vector<std::string> runBodies(int size, const Managers& managers, const std::string& role,
                                   const std::string& argument) {
  std::vector<std::string> failures(managers.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < managers.size(); ++i) {
    threads.emplace_back([&, i] {
      RankContext context{managers[i]->self().rank, size, *managers[i], argument, ""};
      try {
        roles().at(role)(context);
      } catch (const std::exception& e) {
        context.failures += absl::StrCat("threw: ", e.what(), "\n");
      }
      failures[i] = context.failures;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return failures;
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

/// A started process of some ranks: it says who they are on descriptor 3, is told of their peers on 4, and reports
/// failures on 3.
struct Child {
  pid_t pid = 0;
  int ranks = 0;
  int from = -1;
  int to = -1;
};

Child start(Rank first, int ranks, int size, const std::string& role, const std::string& argument,
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
  std::vector<std::string> environment = {absl::StrCat("DTORCH_TEST_RANK=", first),
                                          absl::StrCat("DTORCH_TEST_RANKS=", ranks),
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
  std::string test = "runs as ranks";
  std::string quiet = "--out=/dev/null";
  std::array<char*, 4> argv = {program.data(), test.data(), quiet.data(), nullptr};
  Child child;
  const int error = ::posix_spawn(&child.pid, program.c_str(), &actions, nullptr, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  for (const int fd : {out, in, from[1], to[0]}) ::close(fd);
  require(error == 0, "posix_spawn");
  child.ranks = ranks;
  child.from = from[0];
  child.to = to[1];
  return child;
}

std::vector<RankOutcome> runProcesses(int size, int ranksEach, const std::string& role, const std::string& argument,
                                      std::chrono::milliseconds timeout) {
  std::vector<Child> children;
  for (Rank rank = 0; rank < size; rank += ranksEach) {
    children.push_back(start(rank, std::min(ranksEach, size - rank), size, role, argument, timeout));
  }
  std::vector<PeerRef> peers(static_cast<std::size_t>(size));
  bool complete = true;
  std::size_t known = 0;
  for (const Child& child : children) {
    const auto ranks = static_cast<std::size_t>(child.ranks);
    complete = readAll(child.from, &peers[known], ranks * sizeof(PeerRef)) && complete;
    known += ranks;
  }
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
    outcomes.insert(outcomes.end(), static_cast<std::size_t>(child.ranks), outcome);
  }
  return outcomes;
}

std::vector<RankOutcome> runThreads(int size, const std::string& role, const std::string& argument,
                                    std::chrono::milliseconds timeout) {
  at::set_num_threads(1);  // ranks are the parallelism here, as in processes
  Managers managers;
  std::vector<PeerRef> peers;
  for (Rank rank = 0; rank < size; ++rank) {
    managers.push_back(*ThreadGroupManager::create(rank, timeout));
    peers.push_back(managers.back()->self());
  }
  for (auto& manager : managers) manager->setPeers(peers, 1);
  std::vector<RankOutcome> outcomes;
  for (std::string& failures : runBodies(size, managers, role, argument)) outcomes.push_back({0, std::move(failures)});
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
                                : runProcesses(size, mode == Mode::kMixed ? 2 : 1, role, argument, timeout);
}

void expectRanks(Mode mode, int size, const std::string& role, const std::string& argument) {
  const auto outcomes = runRanks(mode, size, role, argument);
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    INFO(size << " " << name(mode) << ", rank " << i << ": " << outcomes[i].failures);
    CHECK(outcomes[i].status == 0);
    CHECK(outcomes[i].failures.empty());
  }
}

TEST_CASE("runs as ranks", "[.]") {
  int first = 0;
  int ranks = 0;
  int size = 0;
  int timeout = 0;
  REQUIRE(absl::SimpleAtoi(environment("DTORCH_TEST_RANK"), &first));
  REQUIRE(absl::SimpleAtoi(environment("DTORCH_TEST_RANKS"), &ranks));
  REQUIRE(absl::SimpleAtoi(environment("DTORCH_TEST_SIZE"), &size));
  REQUIRE(absl::SimpleAtoi(environment("DTORCH_TEST_TIMEOUT_MS"), &timeout));
  if (environment("DTORCH_TEST_ARGUMENT").starts_with("shared")) installSharedAllocator();
  Managers managers;
  for (Rank rank = first; rank < first + ranks; ++rank) {
    auto manager = ThreadGroupManager::create(rank, std::chrono::milliseconds(timeout));
    REQUIRE(manager.ok());
    writeAll(3, &(*manager)->self(), sizeof(PeerRef));
    managers.push_back(*std::move(manager));
  }
  std::vector<PeerRef> peers(static_cast<std::size_t>(size));
  REQUIRE(readAll(4, peers.data(), peers.size() * sizeof(PeerRef)));
  for (auto& manager : managers) manager->setPeers(peers, 1);
  for (const std::string& failures :
       runBodies(size, managers, environment("DTORCH_TEST_ROLE"), environment("DTORCH_TEST_ARGUMENT"))) {
    if (!failures.empty()) writeAll(3, failures.data(), std::min<std::size_t>(failures.size(), 30000));
  }
}

}  // namespace dtorch::testing
