#include "worker/thread_stacks.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>

#include "absl/debugging/symbolize.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace dtorch {
namespace {

constexpr std::size_t kMaxThreads = 256;
constexpr int kMaxFrames = 32;
constexpr int kOfTheSignal = 2;  // innermost frames that are no thread's own: the handler, and what it returns to
constexpr std::int64_t kPatienceNs = 200'000'000;
constexpr std::size_t kMaxName = 160;

int walkSignal() { return SIGRTMIN + 5; }

/// Filled in by the thread that it is sent to.
struct Walk {
  std::array<void*, kMaxFrames + kOfTheSignal> frames{};
  int count = 0;
  sem_t done{};
};

void onWalkSignal(int /*signal*/, siginfo_t* info, void* /*context*/) {
  const int error = errno;
  if (info->si_code == SI_QUEUE && info->si_pid == ::getpid() && info->si_value.sival_ptr != nullptr) {
    auto* walk = static_cast<Walk*>(info->si_value.sival_ptr);
    walk->count = ::backtrace(walk->frames.data(), static_cast<int>(walk->frames.size()));
    ::sem_post(&walk->done);
  }
  errno = error;
}

void installHandler() {
  std::array<void*, 1> frame{};
  ::backtrace(frame.data(), 1);  // loads what it needs, which a signal handler must not
  struct sigaction action {};
  action.sa_sigaction = onWalkSignal;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  ::sigaction(walkSignal(), &action, nullptr);
}

bool send(pid_t tid, Walk* walk) {
  siginfo_t info{};
  info.si_signo = walkSignal();
  info.si_code = SI_QUEUE;
  info.si_pid = ::getpid();
  info.si_uid = ::getuid();
  info.si_value.sival_ptr = walk;
  return ::syscall(SYS_rt_tgsigqueueinfo, ::getpid(), tid, walkSignal(), &info) == 0;
}

bool awaitDone(Walk& walk, const timespec& until) {
  for (;;) {
    if (::sem_clockwait(&walk.done, CLOCK_MONOTONIC, &until) == 0) return true;
    if (errno != EINTR) return false;
  }
}

timespec afterPatience() {
  timespec until{};
  ::clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_nsec += kPatienceNs;
  until.tv_sec += until.tv_nsec / 1'000'000'000;
  until.tv_nsec %= 1'000'000'000;
  return until;
}

// "at::native::mm()", or the address within its file. But for the innermost frame it is the address behind a call,
// which may be that of the next function.
std::string nameOf(void* at, bool innermost) {
  auto* address = static_cast<char*>(at) - (innermost ? 0 : 1);
  std::array<char, kMaxName> name{};
  if (absl::Symbolize(address, name.data(), static_cast<int>(name.size()))) return name.data();
  Dl_info file{};
  if (::dladdr(address, &file) == 0 || file.dli_fname == nullptr) {
    return absl::StrCat("0x", absl::Hex(reinterpret_cast<std::uintptr_t>(address)));
  }
  const auto offset = static_cast<std::uint64_t>(address - static_cast<char*>(file.dli_fbase));
  return absl::StrCat(std::filesystem::path(file.dli_fname).filename().string(), "+0x", absl::Hex(offset));
}

bool blocksSignal(pid_t tid) {
  std::ifstream status(absl::StrCat("/proc/self/task/", tid, "/status"));
  std::string line;
  while (std::getline(status, line)) {
    absl::string_view mask = line;
    if (!absl::ConsumePrefix(&mask, "SigBlk:\t")) continue;
    std::uint64_t blocked = 0;
    return absl::SimpleHexAtoi(mask, &blocked) && (blocked >> (walkSignal() - 1) & 1) != 0;
  }
  return true;
}

std::vector<pid_t> otherThreads() {
  std::vector<pid_t> threads;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", error)) {
    const std::string name = entry.path().filename();
    pid_t tid = 0;
    std::from_chars(name.data(), name.data() + name.size(), tid);
    if (tid != 0 && tid != ::gettid()) threads.push_back(tid);
    if (threads.size() == kMaxThreads) break;
  }
  std::sort(threads.begin(), threads.end());
  return threads;
}

}  // namespace

std::vector<NamedStack> threadStacks() {
  static std::mutex mutex;
  // Of threads that have been asked and have not answered: they may still, at any time, also while the process ends.
  static auto* unanswered = new std::map<pid_t, std::unique_ptr<Walk>>;
  const std::lock_guard lock(mutex);
  static const bool installed = (installHandler(), true);
  static_cast<void>(installed);

  const std::vector<pid_t> threads = otherThreads();
  std::erase_if(*unanswered, [&](const auto& entry) {
    // An answer to an earlier question tells nothing of now. A thread that has ended will not answer.
    return ::sem_trywait(&entry.second->done) == 0 || !std::binary_search(threads.begin(), threads.end(), entry.first);
  });
  std::map<pid_t, std::unique_ptr<Walk>> asked;
  std::vector<NamedStack> stacks;
  for (const pid_t tid : threads) {
    NamedStack& stack = stacks.emplace_back();
    stack.tid = tid;
    std::getline(std::ifstream(absl::StrCat("/proc/self/task/", tid, "/comm")), stack.name);
    if (blocksSignal(tid) || unanswered->contains(tid)) continue;
    auto walk = std::make_unique<Walk>();
    ::sem_init(&walk->done, 0, 0);
    if (send(tid, walk.get())) asked.emplace(tid, std::move(walk));
  }
  const timespec until = afterPatience();  // of all together
  for (NamedStack& stack : stacks) {
    const auto entry = asked.find(stack.tid);
    if (entry == asked.end()) continue;
    const Walk& walk = *entry->second;
    if (!awaitDone(*entry->second, until)) {
      unanswered->emplace(stack.tid, std::move(entry->second));
      continue;
    }
    for (int i = kOfTheSignal; i < walk.count; ++i) {
      stack.frames.push_back(nameOf(walk.frames.at(static_cast<std::size_t>(i)), i == kOfTheSignal));
    }
  }
  return stacks;
}

}  // namespace dtorch
