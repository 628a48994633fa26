// Large tensors between a client of the daemon's host and the workers: in shared memory, with no byte through the
// daemon where both may map it, and as bytes where not.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "client/cpp/operators.h"
#include "client/cpp/session.h"
#include "shm/segment.h"
#include "tests/catch.h"
#include "tests/process/daemon_fixture.h"
#include "tests/process/raw_client.h"

namespace dtorch {
namespace {

constexpr auto kDeadline = std::chrono::seconds(20);
constexpr std::int64_t kFloats = 300000;

std::vector<float> countedFrom(float first) {
  std::vector<float> values(kFloats);
  std::iota(values.begin(), values.end(), first);
  return values;
}

Tensor put(Session& session, const std::vector<float>& values, Placements placements = {}) {
  return session.put(HostView::of(values, {kFloats}), session.mesh(), std::move(placements));
}

HostTensor valueOf(const Tensor& tensor) {
  const auto value = tensor.get().wait(kDeadline);
  INFO(value.status().ToString());
  REQUIRE(value.ok());
  return *value;
}

bool equals(const HostTensor& value, const std::vector<float>& wanted) {
  const auto values = value.values<float>();
  return values.ok() && std::equal(values->begin(), values->end(), wanted.begin(), wanted.end());
}

/// Whether the memory at `data` is another process's segment as well, of that kind.
bool isShared(const void* data, const std::string& kind = "memfd:dtorch-pool") {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) != 2) continue;
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    if (begin <= address && address < end) return line.find(kind) != std::string::npos;
  }
  return false;
}

std::size_t openDescriptors(std::int64_t pid) {
  const std::filesystem::directory_iterator begin("/proc/" + std::to_string(pid) + "/fd");
  return static_cast<std::size_t>(std::distance(begin, std::filesystem::directory_iterator{}));
}

}  // namespace

TEST_CASE("large values are a local client's in the worker's memory, and are snapshots") {
  DaemonFixture::Options options;
  options.threads = GENERATE(false, true);
  DaemonFixture daemon(options);
  const auto session = daemon.connect();
  const std::vector<float> numbers = countedFrom(0);
  for (const Placements& placements : {Placements{Placement::replicate()}, Placements{Placement::shard(0)}}) {
    const Tensor tensor = put(*session, numbers, placements);
    const HostTensor first = valueOf(tensor);
    CHECK(isShared(first.bytes().data()));
    CHECK(equals(first, numbers));
    session->call("aten::add_.Scalar", {tensor, 1.0});
    const HostTensor second = valueOf(tensor);
    CHECK(equals(first, numbers));  // what it is in is not used again while it is held
    CHECK(equals(second, countedFrom(1)));
    CHECK(valueOf(tensor.redistribute({Placement::shard(0)})).numel() == kFloats);
  }
  const auto part = put(*session, numbers, {Placement::shard(0)}).getLocal(1).wait(kDeadline);
  REQUIRE(part.ok());
  CHECK(part->numel() == kFloats / 2);
  CHECK(part->values<float>()->front() == static_cast<float>(kFloats >> 1));
}

TEST_CASE("a gathered value is the memory into which it was gathered, and a snapshot like others") {
  DaemonFixture daemon;
  const auto session = daemon.connect();
  std::vector<float> numbers(3 << 20);
  std::iota(numbers.begin(), numbers.end(), 0.0F);
  const auto putAll = [&numbers](Session& own) {
    return own.put(HostView::of(numbers, {3 << 20}), own.mesh(), {Placement::shard(0)});
  };
  const Tensor tensor = putAll(*session);
  std::vector<HostTensor> values;
  int lent = 0;
  for (int round = 0; round < 6; ++round) {
    values.push_back(valueOf(tensor));
    CHECK(equals(values.back(), numbers));
    lent += isShared(values.back().bytes().data(), "memfd:dtorch-heap") ? 1 : 0;
  }
  CHECK(lent > 0);  // unless the worker hears too late that nobody else will use it
  session->call("aten::mul_.Scalar", {tensor, 0.0});
  const auto other = daemon.connect();
  CHECK(equals(valueOf(putAll(*other)), numbers));
  CHECK(equals(valueOf(tensor), std::vector<float>(3 << 20, 0.0F)));
  for (const HostTensor& value : values) CHECK(equals(value, numbers));
}

TEST_CASE("memory is used again when nobody holds the value, within the session") {
  DaemonFixture daemon;
  const auto session = daemon.connect();
  const std::vector<float> numbers = countedFrom(5);
  const Tensor tensor = put(*session, numbers);
  // Its thread may hold a value for a moment longer than its taker: then two take turns.
  std::set<const std::byte*> addresses;
  for (int round = 0; round < 8; ++round) {
    const HostTensor value = valueOf(tensor);
    CHECK(equals(value, numbers));
    addresses.insert(value.bytes().data());
  }
  CHECK(addresses.size() <= 2);
  const auto other = daemon.connect();
  const HostTensor kept = valueOf(tensor);
  const HostTensor theirs = valueOf(put(*other, countedFrom(9)));
  CHECK(equals(kept, numbers));
  CHECK(equals(theirs, countedFrom(9)));
}

TEST_CASE("a put may change its memory as soon as it returns") {
  DaemonFixture daemon;
  const auto session = daemon.connect();
  std::vector<Tensor> tensors;
  std::vector<float> numbers(kFloats);
  for (int i = 0; i < 20; ++i) {
    std::fill(numbers.begin(), numbers.end(), static_cast<float>(i));
    tensors.push_back(put(*session, numbers, i % 2 == 0 ? Placements{} : Placements{Placement::shard(0)}));
  }
  for (int i = 0; i < 20; ++i) {
    CHECK(equals(valueOf(tensors[static_cast<std::size_t>(i)]), std::vector<float>(kFloats, static_cast<float>(i))));
  }
  // Strided, and in parts.
  std::vector<float> wide(2 * kFloats);
  std::iota(wide.begin(), wide.end(), 0.0F);
  const Tensor strided = session->put(HostView::of(wide, {kFloats}, {2}), session->mesh());
  const HostTensor everySecond = valueOf(strided);
  CHECK(everySecond.values<float>()->back() == 2.0F * (kFloats - 1));
  const std::vector<HostView> parts = {HostView::of(numbers, {kFloats}), HostView::of(wide, {kFloats})};
  const HostTensor joined = valueOf(session->putShards(parts, {2 * kFloats}, session->mesh(), {Placement::shard(0)}));
  CHECK(joined.values<float>()->front() == numbers.front());
  CHECK(joined.values<float>()->back() == wide[kFloats - 1]);
}

TEST_CASE("a value outlives its session and its worker") {
  DaemonFixture daemon;
  auto session = daemon.connect();
  const std::vector<float> numbers = countedFrom(3);
  const HostTensor value = valueOf(put(*session, numbers));
  session.reset();
  const auto next = daemon.connect();
  CHECK(equals(valueOf(put(*next, countedFrom(8))), countedFrom(8)));
  CHECK(equals(value, numbers));
  const v1::StatusReply status = daemon.status();
  for (const auto& worker : status.workers()) ::kill(static_cast<pid_t>(worker.pid()), SIGKILL);
  CHECK(equals(value, numbers));
}

TEST_CASE("a client that cannot reach the workers' sockets gets its values as bytes") {
  DaemonFixture daemon;
  const auto session = daemon.connect();
  for (int rank = 0; rank < 2; ++rank) {
    REQUIRE(std::filesystem::remove(daemon.folder() + "/values-" + std::to_string(rank) + ".sock"));
  }
  const std::vector<float> numbers = countedFrom(1);
  const Tensor tensor = put(*session, numbers, {Placement::shard(0)});
  for (int round = 0; round < 3; ++round) {
    const HostTensor value = valueOf(tensor);
    CHECK_FALSE(isShared(value.bytes().data()));
    CHECK(equals(value, numbers));
  }
}

TEST_CASE("1,000 puts and gets leave no descriptor, mapping or memory behind") {
  DaemonFixture daemon;
  const std::uint64_t memory = sharedMemoryInUse();
  std::vector<std::int64_t> pids = {::getpid(), daemon.pid()};
  const v1::StatusReply status = daemon.status();
  for (const auto& worker : status.workers()) pids.push_back(worker.pid());
  {
    const auto session = daemon.connect();
    const std::vector<float> numbers = countedFrom(2);
    std::vector<std::size_t> before;
    for (int i = 0; i < 1000; ++i) {
      const HostTensor value =
          valueOf(put(*session, numbers, i % 2 == 0 ? Placements{} : Placements{Placement::shard(0)}));
      if (value.values<float>()->back() != numbers.back()) FAIL("round " << i);
      if (i == 20) {
        for (const std::int64_t pid : pids) before.push_back(openDescriptors(pid));
      }
    }
    // Segments that are on their way at once, of 1,000.
    for (std::size_t i = 0; i < pids.size(); ++i) CHECK(openDescriptors(pids[i]) <= before[i] + 32);
    CHECK(sharedMemoryInUse() < memory + (std::uint64_t{160} << 20));
  }
  // Workers keep what they use for tensors; nothing of the session's values is left.
  const auto deadline = std::chrono::steady_clock::now() + kDeadline;
  while (sharedMemoryInUse() > memory + (std::uint64_t{130} << 20) && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  CHECK(sharedMemoryInUse() <= memory + (std::uint64_t{130} << 20));
}

TEST_CASE("a put of memory that is not the client's own fails, and harms nobody") {
  DaemonFixture daemon;
  const auto segment = Segment::create("dtorch-test", 4 * kFloats);
  REQUIRE(segment.ok());
  struct Attempt {
    std::int64_t pid;
    std::int32_t fd;
    std::uint64_t bytes;
    const char* error;
  };
  const std::vector<Attempt> attempts = {
      {daemon.pid(), segment->ref().fd, segment->ref().bytes, "not the client's"},
      {::getpid(), segment->ref().fd, 100, "a segment of 100 bytes"},
      {::getpid(), 0, segment->ref().bytes, "segment"},
  };
  for (const bool saysPid : {true, false}) {
    for (const Attempt& attempt : attempts) {
      RawClient client(daemon);
      v1::ClientMessage hello;
      hello.mutable_hello()->set_protocol(kProtocolVersion);
      if (saysPid) hello.mutable_hello()->set_pid(::getpid());
      REQUIRE(client.send(hello));
      v1::ClientMessage message;
      v1::MeshDefinition* mesh = message.mutable_batch()->add_commands()->mutable_define_mesh();
      mesh->set_id(1);
      mesh->mutable_mesh()->set_device_type(v1::DEVICE_TYPE_CPU);
      mesh->mutable_mesh()->add_shape(2);
      mesh->mutable_mesh()->add_ranks(0);
      mesh->mutable_mesh()->add_ranks(1);
      v1::Put* put = message.mutable_batch()->add_commands()->mutable_put();
      put->set_tensor(1);
      put->set_mesh(1);
      put->mutable_meta()->set_dtype(v1::DTYPE_FLOAT32);
      put->mutable_meta()->add_shape(kFloats);
      put->add_placements()->set_replicate(true);
      put->set_total_bytes(4 * kFloats);
      put->mutable_segment()->set_pid(attempt.pid);
      put->mutable_segment()->set_fd(attempt.fd);
      put->mutable_segment()->set_inode(segment->ref().inode);
      put->mutable_segment()->set_bytes(attempt.bytes);
      v1::Get* get = message.mutable_batch()->add_commands()->mutable_get();
      get->set_future(1);
      get->set_tensor(1);
      REQUIRE(client.send(message));
      v1::FutureResult result;
      REQUIRE(client.readResult(1, &result));
      INFO(result.error().message());
      CHECK(result.error().message().find(saysPid ? attempt.error : "not the client's") != std::string::npos);
    }
  }
  const auto session = daemon.connect();
  CHECK(equals(valueOf(put(*session, countedFrom(0))), countedFrom(0)));
}

}  // namespace dtorch
