// Values in and out.
#include <ATen/ATen.h>

#include <cstring>

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
