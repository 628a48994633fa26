// Values in and out.
#include <ATen/ATen.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "comm/store/shared_allocator.h"
#include "shm/segment.h"
#include "tests/catch.h"
#include "tests/worker/running_workers.h"

namespace dtorch {
namespace {
const Placement kR = Placement::replicate();
const Placement kS0 = Placement::shard(0);
constexpr GroupId kAll = RunningWorkers::kAll;

v1::WorkerCommand segmentUpload(OperandId operand, const DeviceMesh& mesh, const at::Tensor& tensor,
                                const Placements& placements, const SegmentRef& ref) {
  v1::WorkerCommand command = upload(operand, mesh, metaOf(tensor), placements, "");
  v1::SegmentRef* wire = command.mutable_upload()->mutable_segment();
  wire->set_pid(ref.pid);
  wire->set_fd(ref.fd);
  wire->set_inode(ref.inode);
  wire->set_bytes(ref.bytes);
  return command;
}

/// The inodes of this process's segments for tensors.
std::set<std::uint64_t> heapSegments() {
  std::set<std::uint64_t> inodes;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    struct stat info {};
    const std::string target = std::filesystem::read_symlink(entry.path(), error);
    if (target.find("memfd:dtorch-heap") == std::string::npos) continue;
    if (::stat(entry.path().c_str(), &info) == 0) inodes.insert(info.st_ino);
  }
  return inodes;
}
}  // namespace

TEST_CASE("each rank takes its own part of an upload, uneven and empty ones too") {
  RunningWorkers workers(3);
  const at::Tensor x = at::rand({4, 5});
  workers.send({workers.put(1, x, {kS0}), workers.put(2, x, {Placement::shard(1)}), workers.put(3, x, {kR}),
                workers.put(4, x, {Placement::partial()})});
  const std::vector<at::Tensor> rows{x.slice(0, 0, 2), x.slice(0, 2, 4), x.slice(0, 4, 4)};  // 2, 2, 0
  for (Rank rank = 0; rank < 3; ++rank) {
    CHECK(at::equal(workers.fetch(rank, 1), rows[static_cast<std::size_t>(rank)]));
    CHECK(at::equal(workers.fetch(rank, 2), x.chunk(3, 1)[static_cast<std::size_t>(rank)]));
    CHECK(at::equal(workers.fetch(rank, 3), x));
    CHECK(at::equal(workers.fetch(rank, 4), rank == 0 ? x : at::zeros_like(x)));
  }
}

TEST_CASE("the parts of an upload go to their ranks") {
  RunningWorkers workers(2);
  const at::Tensor whole = at::rand({3, 2});
  const at::Tensor second = at::rand({3, 2});
  v1::WorkerCommand command =
      upload(1, workers.mesh(), metaOf(whole), {Placement::partial()}, bytesOf(whole) + bytesOf(second));
  command.mutable_upload()->set_parts(true);
  for (int i = 0; i < 2; ++i) {
    v1::IntList* shape = command.mutable_upload()->add_part_shapes();
    shape->add_values(3);
    shape->add_values(2);
  }
  workers.send({command});
  CHECK(at::equal(workers.fetch(0, 1), whole));
  CHECK(at::equal(workers.fetch(1, 1), second));
}

TEST_CASE("large values come and go through shared memory") {
  RunningWorkers workers(2);
  const at::Tensor x = at::rand({1001, 333});  // 1.3 MiB
  absl::StatusOr<Segment> segment = Segment::create("upload", x.nbytes());
  REQUIRE(segment.ok());
  std::memcpy(segment->data(), x.data_ptr(), x.nbytes());
  workers.send({segmentUpload(1, workers.mesh(), x, {kS0}, segment->ref())});
  workers.driver().drain(kAll, 0);
  workers.driver().drain(kAll, 1);
  segment = Segment();  // every rank has taken its part
  CHECK(at::equal(workers.fetch(0, 1), x.slice(0, 0, 501)));
  const v1::FetchedValue value = workers.driver().fetch(kAll, 1, 1);
  REQUIRE(value.has_segment());
  CHECK(value.inline_bytes().empty());
  CHECK(at::equal(valueOf(value), x.slice(0, 501, 1001)));
  v1::WorkerCommand taken;
  taken.mutable_value_taken()->set_future(value.future());
  workers.send({taken});
  workers.driver().drain(kAll, 1);
  // The segment is used again for the next value.
  const v1::FetchedValue next = workers.driver().fetch(kAll, 1, 1);
  CHECK(next.segment().inode() == value.segment().inode());
  CHECK(at::equal(valueOf(next), x.slice(0, 501, 1001)));
}

TEST_CASE("a value's memory serves its own session alone, and ends with it") {
  RunningWorkers workers(1);
  const auto operand = [](SessionId session, OperandId id) { return (session << kSessionShift) | id; };
  const at::Tensor x = at::rand({300000});
  const at::Tensor y = at::rand({300000});
  workers.send({workers.put(operand(7, 1), x, {kR}), workers.put(operand(8, 1), y, {kR})});
  const auto take = [&](const v1::FetchedValue& value) {
    v1::WorkerCommand taken;
    taken.mutable_value_taken()->set_future(value.future());
    workers.send({taken});
    workers.driver().drain(kAll, 0);
  };
  const v1::FetchedValue first = workers.driver().fetch(kAll, 0, operand(7, 1));
  CHECK(at::equal(valueOf(first), x));
  take(first);
  const v1::FetchedValue others = workers.driver().fetch(kAll, 0, operand(8, 1));
  CHECK(others.segment().inode() != first.segment().inode());
  CHECK(at::equal(valueOf(others), y));
  const v1::FetchedValue again = workers.driver().fetch(kAll, 0, operand(7, 1));
  CHECK(again.segment().inode() == first.segment().inode());
  CHECK(at::equal(valueOf(again), x));
  // One more, which is held while the session ends.
  const v1::FetchedValue held = workers.driver().fetch(kAll, 0, operand(7, 1));
  take(again);
  v1::WorkerCommand end;
  end.mutable_discard()->set_ended_session(7);
  workers.send({end});
  workers.driver().drain(kAll, 0);
  const auto isThere = [](const v1::FetchedValue& value) {
    const v1::SegmentRef& ref = value.segment();
    return Segment::open({ref.pid(), ref.fd(), ref.inode(), ref.bytes()}).ok();
  };
  CHECK_FALSE(isThere(again));
  CHECK(at::equal(valueOf(held), x));
  take(held);
  CHECK_FALSE(isThere(held));
  CHECK(at::equal(valueOf(others), y));
}

TEST_CASE("a value that was gathered for the fetch alone is lent where it lies") {
  installSharedAllocator();
  RunningWorkers workers(2);
  const auto operand = [](SessionId session, OperandId id) { return (session << kSessionShift) | id; };
  const at::Tensor x = at::rand({3 << 20});  // 12 MiB
  v1::Plan gather = makePlan(1, workers.mesh(), 1, "redistribute");
  addConvert(gather, 0, {3 << 20}, {kS0}, {kR});
  gather.add_outputs(1);
  workers.send({workers.put(operand(7, 1), x, {kS0}), workers.put(operand(7, 2), x, {kR}), define(gather)});
  FutureId future = 1000;
  const auto fetchOnce = [&](OperandId from, bool discarded) {
    v1::WorkerCommand fetch;
    fetch.mutable_fetch()->set_future(++future);
    fetch.mutable_fetch()->set_operand(operand(7, 5));
    fetch.mutable_fetch()->set_rank(0);
    std::vector<v1::WorkerCommand> commands = {run(1, {from}, operand(7, 5)), fetch};
    if (discarded) commands.push_back(discard({operand(7, 5)}));
    workers.send(commands);
    return workers.driver()
        .await(0, "a value", [&](const v1::ReportItem& i) { return i.has_value() && i.value().future() == future; })
        .value();
  };
  const auto isTensorMemory = [](const v1::FetchedValue& value) {
    return heapSegments().contains(value.segment().inode());
  };
  // A discard that comes after the fetch has begun is too late for it.
  v1::FetchedValue lent;
  for (int i = 0; i < 20 && !isTensorMemory(lent); ++i) lent = fetchOnce(operand(7, 1), true);
  REQUIRE(isTensorMemory(lent));
  CHECK(at::equal(valueOf(lent), x));
  // Neither the session's next tensors nor another session's are put there while it is held.
  const v1::FetchedValue next = fetchOnce(operand(7, 1), true);
  CHECK(next.segment().inode() != lent.segment().inode());
  workers.send({workers.put(operand(8, 1), at::zeros({3 << 20}), {kR})});
  CHECK(at::equal(workers.fetch(0, operand(8, 1)), at::zeros({3 << 20})));
  CHECK(at::equal(valueOf(lent), x));
  CHECK(at::equal(valueOf(next), x));
  // What can still be written is copied.
  const v1::FetchedValue kept = fetchOnce(operand(7, 1), false);
  CHECK_FALSE(isTensorMemory(kept));
  const v1::FetchedValue whole = workers.driver().fetch(kAll, 0, operand(7, 2));
  CHECK_FALSE(isTensorMemory(whole));
  CHECK(at::equal(valueOf(whole), x));
  // Given back, it is the session's again; with the session it goes.
  for (const FutureId taken : {lent.future(), next.future(), kept.future(), whole.future()}) {
    v1::WorkerCommand command;
    command.mutable_value_taken()->set_future(taken);
    workers.send({command});
  }
  workers.driver().drain(kAll, 0);
  CHECK(heapSegments().contains(lent.segment().inode()));
  v1::WorkerCommand end;
  end.mutable_discard()->set_ended_session(7);
  workers.send({end});
  workers.driver().drain(kAll, 0);
  workers.driver().drain(kAll, 1);
  CHECK_FALSE(heapSegments().contains(lent.segment().inode()));
}

TEST_CASE("a value that is not contiguous arrives row-major") {
  RunningWorkers workers(1);
  const at::Tensor x = at::rand({3, 5});
  v1::Plan plan = makePlan(1, workers.mesh(), 1, "aten::t");
  addKernel(plan, "aten::t", {TensorArg{0}});
  plan.add_outputs(1);
  workers.send({workers.put(1, x, {kR}), define(plan), run(1, {1}, 2)});
  CHECK(at::equal(workers.fetch(0, 2), x.t().contiguous()));
}

TEST_CASE("every dtype survives the way in and out") {
  RunningWorkers workers(1);
  for (int number = 1; number < kDTypeCount; ++number) {
    const auto dtype = static_cast<DType>(number);
    INFO(std::string(name(dtype)));
    const TensorMeta meta = *makeMeta(dtype, {3, 4});
    std::string bytes(static_cast<std::size_t>(meta.bytes()), '\0');
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(dtype == DType::kBool ? i % 2 : i + 1);
    workers.send({upload(1, workers.mesh(), meta, {kR}, bytes)});
    const v1::FetchedValue value = workers.driver().fetch(kAll, 0, 1);
    CHECK(value.inline_bytes() == bytes);
    CHECK(value.meta().dtype() == number);
  }
}

TEST_CASE("a scalar and an empty tensor are values") {
  RunningWorkers workers(1);
  workers.send({workers.put(1, at::scalar_tensor(2.5), {kR}), workers.put(2, at::empty({0, 7}), {kR})});
  CHECK(workers.fetch(0, 1).item<float>() == 2.5F);
  CHECK(workers.fetch(0, 2).sizes() == at::IntArrayRef({0, 7}));
  // An empty segment cannot be: where one is named, nothing of it is read.
  absl::StatusOr<Segment> segment = Segment::create("upload", 1);
  REQUIRE(segment.ok());
  workers.send({segmentUpload(3, workers.mesh(), at::empty({3, 0}), {kR}, segment->ref())});
  CHECK(workers.fetch(0, 3).sizes() == at::IntArrayRef({3, 0}));
}

TEST_CASE("an upload that cannot be is an error on its operand") {
  RunningWorkers workers(1);
  const at::Tensor x = at::rand({8});
  std::string why;
  SECTION("a segment that is gone") {
    workers.send({segmentUpload(1, workers.mesh(), x, {kR}, {getpid(), 1 << 20, 1, 32})});
    why = "cannot open segment";
  }
  SECTION("too few bytes") {
    workers.send({upload(1, workers.mesh(), metaOf(x), {kR}, "short")});
    why = "5 bytes where 32 are needed";
  }
  SECTION("a placement that does not fit") {
    workers.send({upload(1, workers.mesh(), metaOf(x), {Placement::shard(1)}, bytesOf(x))});
    why = "dim";
  }
  CHECK_THAT(workers.fetchError(0, 1).message(), Catch::Contains(why));
  const v1::OperatorFailed failed = workers.driver().awaitFailure(0, 0);
  CHECK(std::vector<OperandId>(failed.operands().begin(), failed.operands().end()) == std::vector<OperandId>{1});
}

}  // namespace dtorch
