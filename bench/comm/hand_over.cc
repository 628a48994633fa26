// Tensors of 64 MiB from one process to another one on the host: by the store, in place, and as the value of a future.
// Prints medians, and the 10th and 90th percentile.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/future/tensor_future.h"
#include "comm/store/shared_allocator.h"
#include "comm/store/tensor_store.h"
#include "shm/futex.h"

namespace dtorch {
namespace {

constexpr std::int64_t kFloats = 16 << 20;
constexpr int kRounds = 21;
constexpr int kTensors = 4;

/// Ends this process when the other one has not come so far within a minute: it has failed.
template <typename Condition>
void waitUntil(const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) {
      std::fprintf(stderr, "the other process does not answer\n");
      std::exit(1);
    }
    ::usleep(100);
  }
}

/// What the two processes tell each other beside what is measured; mapped before the fork.
struct Shared {
  std::array<TensorStore::Peer, 2> peers;
  std::array<char, 256> socket;
  std::array<std::atomic<std::uint64_t>, kRounds> tickets;
  std::array<std::atomic<std::int64_t>, kRounds> started;
  std::atomic<int> arrived;
  std::atomic<std::uint32_t> bell;

  /// Both are here for the `count`-th time.
  void meet(int count) {
    ++arrived;
    waitUntil([&] { return arrived >= 2 * count; });
  }
};

std::int64_t now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }
TensorStore::Deadline soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(60); }

void check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

double read(const at::Tensor& tensor) { return tensor.sum().item<double>(); }

struct Times {
  std::vector<double> micros;
  void add(std::int64_t nanoseconds) { micros.push_back(static_cast<double>(nanoseconds) / 1e3); }
  double at(double part) {
    std::sort(micros.begin(), micros.end());
    return micros[static_cast<std::size_t>(part * static_cast<double>(micros.size() - 1))];
  }
  void print(const char* what, const char* against = "", double base = 0) {
    std::printf("%-58s %9.1f (%.0f..%.0f)", what, at(0.5), at(0.1), at(0.9));
    if (base > 0) std::printf("  %.2fx %s", at(0.5) / base, against);
    std::printf("\n");
  }
};

void source(Shared& shared, const std::string& folder) {
  auto store = TensorStore::create(0, sharedHeap());
  check(store.status());
  auto server = ValueServer::create(folder + "/values");
  check(server.status());
  const std::shared_ptr<ValueServer> values = *std::move(server);
  shared.peers[0] = (*store)->self();
  shared.meet(1);
  check((*store)->setPeers({shared.peers.begin(), shared.peers.end()}));
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < kTensors; ++i) tensors.push_back(at::ones({kFloats}));
  shared.meet(2);
  for (int i = 0; i < kRounds; ++i) {
    ::usleep(20000);  // the reader waits
    shared.started[static_cast<std::size_t>(i)] = now();
    const std::string key = absl::StrCat(i);
    check((*store)->srcSet(key, tensors[static_cast<std::size_t>(i) % tensors.size()], 1));
    check((*store)->srcWaitUntilGetFinished(key, soon()));
  }
  shared.meet(3);
  for (std::size_t i = 0; i < kRounds; ++i) {
    ::usleep(20000);
    shared.started[i] = now();
    ++shared.bell;
    futexWakeAll(shared.bell);
  }
  shared.meet(4);
  for (std::size_t i = 0; i < kRounds; ++i) {
    TensorPromise promise(values);
    shared.tickets[i] = promise.ticket().id;
    ::usleep(20000);
    shared.started[i] = now();
    check(promise.set(tensors[0]));
    shared.meet(5 + static_cast<int>(i));
  }
}

void reader(Shared& shared, const std::string& folder) {
  auto store = TensorStore::create(1, sharedHeap());
  check(store.status());
  shared.peers[1] = (*store)->self();
  shared.meet(1);
  check((*store)->setPeers({shared.peers.begin(), shared.peers.end()}));
  auto client = ValueClient::connect(folder + "/values");
  check(client.status());
  std::vector<at::Tensor> own;  // as many as are handed over in turn: caches hold as little of either
  for (int i = 0; i < kTensors; ++i) own.push_back(at::ones({kFloats}));
  at::Tensor target = at::ones({kFloats});
  Times ownRead;
  Times copy;
  for (int i = 0; i < kRounds; ++i) {
    ::usleep(20000);  // caches and clocks are as when a hand-over was waited for
    const at::Tensor& tensor = own[static_cast<std::size_t>(i % kTensors)];
    std::int64_t start = now();
    read(tensor);
    ownRead.add(now() - start);
    start = now();
    std::memcpy(target.mutable_data_ptr(), tensor.const_data_ptr(), tensor.nbytes());
    copy.add(now() - start);
  }
  ownRead.print("one read of own memory");
  copy.print("memcpy");
  shared.meet(2);
  Times first;
  Times again;
  Times withRead;
  for (int i = 0; i < kRounds; ++i) {
    const std::string key = absl::StrCat(i);
    auto view = (*store)->destGet(0, key, soon());
    const std::int64_t got = now();
    check(view.status());
    read(*view);
    const std::int64_t start = shared.started[static_cast<std::size_t>(i)];
    const bool isFirst = i < kTensors;
    (isFirst ? first : again).add(got - start);
    if (!isFirst) withRead.add(now() - start);
    check((*store)->destFinishGet(0, key));
  }
  shared.meet(3);
  Times wakeUp;
  for (std::uint32_t i = 0; i < kRounds; ++i) {
    while (shared.bell <= i) futexWait(shared.bell, i, std::chrono::seconds(1));
    wakeUp.add(now() - shared.started[i]);
  }
  shared.meet(4);
  wakeUp.print("one wake-up of the reader, nothing handed over");
  first.print("hand-over by the store, memory seen for the first time");
  again.print("hand-over by the store");
  withRead.print("hand-over by the store and one read", "read of own memory", ownRead.at(0.5));
  Times value;
  Times valueRead;
  for (std::size_t i = 0; i < kRounds; ++i) {
    waitUntil([&] { return shared.tickets[i] != 0; });
    const TensorFuture future = TensorFuture::fetch(**client, shared.tickets[i]);
    const auto tensor = future.get(soon());
    const std::int64_t got = now();
    check(tensor.status());
    read(*tensor);
    value.add(got - shared.started[i]);
    valueRead.add(now() - shared.started[i]);
    shared.meet(5 + static_cast<int>(i));
  }
  value.print("value of a future: copied, handed over, mapped", "memcpy", copy.at(0.5));
  valueRead.print("value of a future and one read", "memcpy", copy.at(0.5));
}

int run() {
  std::string folder = (std::filesystem::temp_directory_path() / "dtorch-bench-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) return 1;
  auto* shared =
      static_cast<Shared*>(::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const pid_t child = ::fork();  // before there are threads
  at::set_num_threads(1);
  installSharedAllocator();
  if (child == 0) {
    source(*shared, folder);
    std::_Exit(0);
  }
  reader(*shared, folder);
  int status = 0;
  ::waitpid(child, &status, 0);
  std::filesystem::remove_all(folder);
  return status;
}

}  // namespace
}  // namespace dtorch

int main() { return dtorch::run(); }
