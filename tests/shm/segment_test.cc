#include "shm/segment.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/catch.h"

namespace dtorch {
namespace {

std::uint64_t sharedMemoryInUse() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  std::uint64_t kib = 0;
  std::string unit;
  while (meminfo >> key >> kib && std::getline(meminfo, unit)) {
    if (key == "Shmem:") return kib * 1024;
  }
  return 0;
}

std::size_t entries(const char* folder) {
  const std::filesystem::directory_iterator begin(folder);
  return static_cast<std::size_t>(std::distance(begin, std::filesystem::directory_iterator{}));
}

}  // namespace

TEST_CASE("a new segment is zero, sealed and as large as asked") {
  auto segment = Segment::create("dtorch-test", 12345);
  REQUIRE(segment.ok());
  CHECK(segment->size() == 12345);
  CHECK(std::all_of(segment->data(), segment->data() + 12345, [](std::byte b) { return b == std::byte{0}; }));
  CHECK(::ftruncate(segment->ref().fd, 1) != 0);
}

TEST_CASE("a reserved segment takes the memory that is committed, and no more than there is") {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  auto segment = Segment::reserve("dtorch-test", 100 * kMiB);
  REQUIRE(segment.ok());
  const auto taken = [&] {
    struct stat info {};
    REQUIRE(::fstat(segment->ref().fd, &info) == 0);
    return static_cast<std::size_t>(info.st_blocks) * 512;
  };
  CHECK(taken() == 0);
  REQUIRE(segment->commit(5 * kMiB, kMiB).ok());
  CHECK(taken() == kMiB);
  std::memset(segment->data() + 5 * kMiB, 1, kMiB);
  auto peer = Segment::open(segment->ref());
  REQUIRE(peer.ok());
  CHECK(peer->data()[6 * kMiB - 1] == std::byte{1});
  CHECK(absl::IsResourceExhausted(segment->commit(0, std::size_t{1} << 50)));
  CHECK(absl::IsResourceExhausted(Segment::reserve("dtorch-test", std::size_t{1} << 50).status()));
}

TEST_CASE("another mapping sees the same bytes") {
  auto owner = Segment::create("dtorch-test", 4096);
  REQUIRE(owner.ok());
  auto peer = Segment::open(owner->ref());
  REQUIRE(peer.ok());
  CHECK(peer->data() != owner->data());
  std::memcpy(owner->data(), "hello", 6);
  CHECK(std::string(reinterpret_cast<const char*>(peer->data())) == "hello");
  CHECK(peer->ref() == owner->ref());
}

TEST_CASE("a mapping outlives its owner, the reference does not") {
  SegmentRef ref;
  Segment peer;
  {
    auto owner = Segment::create("dtorch-test", 4096);
    REQUIRE(owner.ok());
    ref = owner->ref();
    peer = std::move(*Segment::open(ref));
    owner->data()[0] = std::byte{7};
  }
  CHECK(peer.data()[0] == std::byte{7});
  CHECK(Segment::open(ref).status().code() == absl::StatusCode::kNotFound);
}

TEST_CASE("the inode guards against a reused descriptor") {
  SegmentRef ref;
  {
    auto first = Segment::create("dtorch-test", 4096);
    REQUIRE(first.ok());
    ref = first->ref();
  }
  auto second = Segment::create("dtorch-test", 4096);
  REQUIRE(second.ok());
  REQUIRE(second->ref().fd == ref.fd);
  CHECK(Segment::open(ref).status().code() == absl::StatusCode::kNotFound);
}

TEST_CASE("an adopted descriptor is mapped privately or shared, a strange one is refused") {
  auto owner = Segment::create("dtorch-test", 10000);
  REQUIRE(owner.ok());
  owner->data()[9] = std::byte{9};
  auto adopted = Segment::adoptPrivately(::fcntl(owner->ref().fd, F_DUPFD_CLOEXEC, 0));
  REQUIRE(adopted.ok());
  CHECK(adopted->size() == 10000);
  CHECK(adopted->data()[9] == std::byte{9});
  adopted->data()[9] = std::byte{1};
  CHECK(owner->data()[9] == std::byte{9});
  CHECK(adopted->data()[9] == std::byte{1});

  auto shared = Segment::adopt(::fcntl(owner->ref().fd, F_DUPFD_CLOEXEC, 0));
  REQUIRE(shared.ok());
  shared->data()[9] = std::byte{2};
  CHECK(owner->data()[9] == std::byte{2});

  const int file = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  CHECK(Segment::adoptPrivately(file).status().code() == absl::StatusCode::kInvalidArgument);
  struct stat info {};
  CHECK(::fstat(file, &info) != 0);  // closed with the refusal
}

TEST_CASE("a copy is made where others map it") {
  std::vector<std::byte> bytes(300001);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
  const auto copy = Segment::copyOf("dtorch-test", bytes.data(), bytes.size());
  REQUIRE(copy.ok());
  CHECK(std::memcmp(copy->data(), bytes.data(), bytes.size()) == 0);
  const auto peer = Segment::open(copy->ref());
  REQUIRE(peer.ok());
  CHECK(std::memcmp(peer->data(), bytes.data(), bytes.size()) == 0);
  auto moved = std::move(*Segment::copyOf("dtorch-test", bytes.data(), bytes.size()));
  moved.populate();
  moved.populate();
  CHECK(std::memcmp(moved.data(), bytes.data(), bytes.size()) == 0);
  CHECK(absl::IsInvalidArgument(Segment::copyOf("dtorch-test", nullptr, 0).status()));
}

TEST_CASE("an impossible size is RESOURCE_EXHAUSTED") {
  CHECK(Segment::create("dtorch-test", std::size_t{1} << 60).status().code() == absl::StatusCode::kResourceExhausted);
}

TEST_CASE("a segment of no bytes is refused") {
  CHECK(Segment::create("dtorch-test", 0).status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("20 owners killed with SIGKILL leave /dev/shm and memory as they were") {
  const std::size_t names = entries("/dev/shm");
  const std::uint64_t before = sharedMemoryInUse();
  constexpr std::size_t kBytes = 16 << 20;
  for (int round = 0; round < 20; ++round) {
    int ready[2];
    REQUIRE(::pipe(ready) == 0);
    const pid_t child = ::fork();  // this process has one thread
    if (child == 0) {
      auto segment = Segment::create("dtorch-test", kBytes);
      std::memset(segment->data(), 1, kBytes);
      [[maybe_unused]] const auto written = ::write(ready[1], "r", 1);
      for (;;) ::pause();
    }
    char byte = 0;
    REQUIRE(::read(ready[0], &byte, 1) == 1);
    REQUIRE(::kill(child, SIGKILL) == 0);
    REQUIRE(::waitpid(child, nullptr, 0) == child);
    ::close(ready[0]);
    ::close(ready[1]);
  }
  CHECK(entries("/dev/shm") == names);
  // Others may use shared memory meanwhile; what 20 rounds leak would be twice this.
  CHECK(sharedMemoryInUse() < before + 10 * kBytes);
}

}  // namespace dtorch
