// Values between the two ends of a local socket, without torch: also run under the thread sanitizer.
#include "comm/future/value_server.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/future/value_client.h"
#include "tests/catch.h"

namespace dtorch {
namespace {

/// A folder of this test alone, removed at its end.
class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "dtorch-values-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string socket() const { return path_ + "/values"; }

 private:
  std::string path_;
};

std::shared_ptr<Snapshot> bytesOf(std::size_t count, char fill) {
  auto value = std::make_shared<Snapshot>();
  value->dtype = DType::kUInt8;
  value->shape = {static_cast<std::int64_t>(count)};
  if (count > Snapshot::kInlineBytes) {
    value->segment = std::make_unique<Segment>(*Segment::create("dtorch-test", count));
  } else {
    value->bytes.resize(count);
  }
  std::memset(value->data(), fill, count);
  return value;
}

std::future<SnapshotOr> fetch(ValueClient& client, std::uint64_t id) {
  auto promise = std::make_shared<std::promise<SnapshotOr>>();
  auto future = promise->get_future();
  client.fetch(id, [promise](SnapshotOr value) { promise->set_value(std::move(value)); });
  return future;
}

absl::Status statusOf(std::future<SnapshotOr>& future) {
  if (future.wait_for(std::chrono::seconds(10)) != std::future_status::ready)
    return absl::DeadlineExceededError("no answer");
  return future.get().status();
}
absl::Status statusOf(std::future<SnapshotOr>&& future) { return statusOf(future); }

std::size_t openDescriptors() {
  const std::filesystem::directory_iterator begin("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin, std::filesystem::directory_iterator{}));
}

}  // namespace

TEST_CASE("a value goes to whoever asks, before or after it is there") {
  const Folder folder;
  auto server = *ValueServer::create(folder.socket());
  auto client = *ValueClient::connect(folder.socket());
  for (const std::size_t count : {std::size_t{0}, std::size_t{5}, Snapshot::kInlineBytes, std::size_t{300000}}) {
    const ValueTicket ticket = server->announce();
    CHECK(ticket.path == folder.socket());
    auto early = fetch(*client, ticket.id);
    CHECK(early.wait_for(std::chrono::milliseconds(2)) == std::future_status::timeout);
    REQUIRE(server->resolve(ticket.id, bytesOf(count, 'x')).ok());
    auto late = fetch(*client, ticket.id);
    for (auto* future : {&early, &late}) {
      const SnapshotOr value = future->get();
      REQUIRE(value.ok());
      REQUIRE((*value)->shape == std::vector<std::int64_t>{static_cast<std::int64_t>(count)});
      CHECK((*value)->dtype == DType::kUInt8);
      const auto* data = reinterpret_cast<const char*>((*value)->data());
      CHECK(std::count(data, data + count, 'x') == static_cast<std::ptrdiff_t>(count));
      // Large ones are mapped privately: what one reader writes, the next does not see.
      if (count > 0) *(*value)->data() = std::byte{'y'};
    }
    CHECK(absl::IsFailedPrecondition(server->resolve(ticket.id, bytesOf(1, 'z'))));
    server->withdraw(ticket.id);
    CHECK(absl::IsNotFound(statusOf(fetch(*client, ticket.id))));
    CHECK(absl::IsNotFound(server->resolve(ticket.id, bytesOf(1, 'z'))));
  }
}

TEST_CASE("a segment that is used again is mapped once, and shared") {
  const Folder folder;
  auto server = *ValueServer::create(folder.socket());
  const auto mapped = std::make_shared<MappedSegments>(4);
  auto client = *ValueClient::connect(folder.socket(), mapped);
  const std::shared_ptr<Snapshot> value = bytesOf(300000, 'x');
  std::byte* address = nullptr;
  for (const char content : {'a', 'b', 'c'}) {
    std::memset(value->data(), content, 300000);
    const ValueTicket ticket = server->announce();
    REQUIRE(server->resolve(ticket.id, value).ok());
    const SnapshotOr got = fetch(*client, ticket.id).get();
    REQUIRE(got.ok());
    CHECK(static_cast<char>(*(*got)->data()) == content);
    if (address != nullptr) CHECK((*got)->data() == address);
    address = (*got)->data();
    server->withdraw(ticket.id);
  }
  CHECK(mapped->size() == 1);
  CHECK_FALSE(client->ended());
  server.reset();
  for (int i = 0; i < 10000 && !client->ended(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(client->ended());
}

TEST_CASE("errors arrive with code and text") {
  const Folder folder;
  auto server = *ValueServer::create(folder.socket());
  auto client = *ValueClient::connect(folder.socket());
  const ValueTicket ticket = server->announce();
  auto waiting = fetch(*client, ticket.id);
  const absl::Status why = absl::InvalidArgumentError(std::string(3000, 'w'));
  REQUIRE(server->resolve(ticket.id, why).ok());
  CHECK(statusOf(waiting) == why);
  const ValueTicket dropped = server->announce();
  auto withdrawn = fetch(*client, dropped.id);
  CHECK(withdrawn.wait_for(std::chrono::milliseconds(20)) == std::future_status::timeout);
  server->withdraw(dropped.id);
  CHECK(absl::IsAborted(statusOf(withdrawn)));
}

TEST_CASE("either end may leave") {
  const Folder folder;
  auto server = *ValueServer::create(folder.socket());
  const ValueTicket ticket = server->announce();
  auto client = *ValueClient::connect(folder.socket());
  auto cancelled = fetch(*client, ticket.id);
  client.reset();
  CHECK(absl::IsCancelled(statusOf(cancelled)));
  client = *ValueClient::connect(folder.socket());
  auto waiting = fetch(*client, ticket.id);
  server.reset();
  const absl::Status status = statusOf(waiting);
  CHECK(absl::IsUnavailable(status));
  CHECK(std::string(status.message()).find(std::to_string(::getpid())) != std::string::npos);
  CHECK(absl::IsUnavailable(statusOf(fetch(*client, ticket.id))));
  CHECK(absl::IsUnavailable(ValueClient::connect(folder.socket()).status()));
}

TEST_CASE("the socket is this user's alone, and removed") {
  const Folder folder;
  {
    auto server = ValueServer::create(folder.socket());
    REQUIRE(server.ok());
    struct stat info {};
    REQUIRE(::stat(folder.socket().c_str(), &info) == 0);
    CHECK((info.st_mode & 0777) == 0600);
    CHECK(absl::IsAlreadyExists(ValueServer::create(folder.socket()).status()));
  }
  CHECK_FALSE(std::filesystem::exists(folder.socket()));
  CHECK(absl::IsInvalidArgument(ValueServer::create(std::string(200, 'p')).status()));
}

TEST_CASE("a client that does not read, or writes nonsense, hinders nobody") {
  const Folder folder;
  auto server = *ValueServer::create(folder.socket());
  const ValueTicket ticket = server->announce();
  REQUIRE(server->resolve(ticket.id, bytesOf(Snapshot::kInlineBytes, 'x')).ok());
  auto lazy = *LocalSocket::connect(folder.socket());
  std::uint64_t asked = 0;
  // Until neither the server's queue nor the socket takes more.
  for (auto last = std::chrono::steady_clock::now();
       std::chrono::steady_clock::now() - last < std::chrono::milliseconds(50);) {
    if (*lazy.trySend(encodeRequest({++asked, ticket.id}))) last = std::chrono::steady_clock::now();
  }
  CHECK(asked > 256);
  auto rude = *LocalSocket::connect(folder.socket());
  REQUIRE(*rude.trySend("hello"));
  auto client = *ValueClient::connect(folder.socket());
  CHECK(statusOf(fetch(*client, ticket.id)).ok());
  // The rude one is shut out, the lazy one gets its answers as soon as it reads.
  absl::Status rudeStatus;
  while ((rudeStatus = rude.tryReceive().status()).ok()) std::this_thread::yield();
  CHECK(absl::IsUnavailable(rudeStatus));
  for (std::uint64_t answers = 0; answers < 257;) {
    auto message = lazy.tryReceive();
    REQUIRE(message.ok());
    if (*message && decodeReply(**std::move(message), nullptr)) ++answers;
  }
}

TEST_CASE("many waiters in many threads, and nothing is left behind") {
  const Folder folder;
  auto server = *ValueServer::create(folder.socket());
  std::vector<std::unique_ptr<ValueClient>> clients;
  for (int i = 0; i < 4; ++i) clients.push_back(*ValueClient::connect(folder.socket()));
  CHECK(statusOf(fetch(*clients[0], 1)).code() == absl::StatusCode::kNotFound);
  const std::size_t before = openDescriptors();
  constexpr int kRounds = 300;
  std::vector<ValueTicket> tickets;
  for (int i = 0; i < kRounds; ++i) tickets.push_back(server->announce());
  std::atomic<int> right = 0;
  std::vector<std::thread> threads;
  for (auto& client : clients) {
    threads.emplace_back([&] {
      std::vector<std::future<SnapshotOr>> futures;
      for (const ValueTicket& ticket : tickets) futures.push_back(fetch(*client, ticket.id));
      for (auto& future : futures) {
        const SnapshotOr value = future.get();
        if (value.ok() && *(*value)->data() == std::byte{'v'}) ++right;
      }
    });
  }
  for (int i = 0; i < kRounds; ++i) {
    const auto id = tickets[static_cast<std::size_t>(i)].id;
    REQUIRE(server->resolve(id, bytesOf(i % 2 == 0 ? 40 : 40000, 'v')).ok());
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(right == 4 * kRounds);
  for (const ValueTicket& ticket : tickets) server->withdraw(ticket.id);
  // The server may still have an answer's descriptor in its queue: the sockets are empty once this comes back.
  for (auto& client : clients) CHECK(absl::IsNotFound(statusOf(fetch(*client, tickets[0].id))));
  CHECK(openDescriptors() == before);
}

}  // namespace dtorch
