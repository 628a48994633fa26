#include "client/cpp/session_core.h"

#include <future>
#include <numeric>
#include <thread>
#include <vector>

#include "client/cpp/operator_error.h"
#include "client/cpp/operators.h"
#include "tests/catch.h"
#include "tests/client/next_batch.h"

namespace dtorch {
namespace {

/// A core whose commands are read back instead of sent.
class Harness {
 public:
  Harness()
      : core(std::make_shared<SessionCore>()), world(*core->mesh(*DeviceMesh::create(DeviceType::kCpu, {2}, {0, 1}))) {}
  ~Harness() { core->end(absl::UnavailableError("the test is over")); }

  /// All commands appended so far, in order.
  std::vector<v1::Command> sent() {
    std::vector<v1::Command> commands;
    const FutureId marker = 1u << 30;
    core->queue().appendAtOnce().add()->mutable_synchronize()->set_future(marker);
    core->flush();
    for (;;) {
      const auto batch = nextBatch(core->queue());
      for (const v1::Command& command : batch->batch().commands()) {
        if (command.synchronize().future() == marker) return commands;
        commands.push_back(command);
      }
    }
  }
  Tensor put(float value, std::source_location site = std::source_location::current()) {
    const std::vector<float> values{value};
    return core->put({HostView::of(values, {1})}, true, *makeMeta(DType::kFloat32, {1}), world, {}, {}, site);
  }
  static FutureId futureOf(const v1::Command& command) { return command.get().future(); }

  const std::shared_ptr<SessionCore> core;
  const Mesh world;
};

template <typename Predicate>
std::vector<v1::Command> select(const std::vector<v1::Command>& commands, const Predicate& predicate) {
  std::vector<v1::Command> result;
  std::copy_if(commands.begin(), commands.end(), std::back_inserter(result), predicate);
  return result;
}
bool isCall(const v1::Command& command) { return command.template_id() != 0; }
bool isTemplate(const v1::Command& command) { return command.has_define_template(); }

TEST_CASE("A call is its template, defined once, and its tensors") {
  Harness harness;
  const Tensor x = harness.put(1);
  Tensor y = x;
  for (int i = 0; i < 10; ++i) y = add(y, x);
  const auto commands = harness.sent();

  const auto templates = select(commands, isTemplate);
  REQUIRE(templates.size() == 1);
  const v1::TemplateDefinition& definition = templates[0].define_template();
  CHECK(definition.name() == "aten::add.Tensor");
  REQUIRE(definition.arguments().positional_size() == 2);
  CHECK(definition.arguments().positional(0).tensor() == 0);
  CHECK(definition.arguments().positional(1).tensor() == 1);
  CHECK(definition.outputs() == 1);
  CHECK(definition.mesh() == 0);

  const auto calls = select(commands, isCall);
  REQUIRE(calls.size() == 10);
  TensorId last = 1;
  for (const v1::Command& call : calls) {
    CHECK(call.template_id() == definition.id());
    CHECK(std::vector<TensorId>(call.inputs().begin(), call.inputs().end()) == std::vector<TensorId>{last, 1});
    last = call.first_output();
  }
  CHECK(select(commands, [](const v1::Command& c) { return c.has_define_site(); }).size() == 2);  // of put and of add
}

TEST_CASE("Other scalars, options or None places make another template; equal ones do not") {
  Harness harness;
  const Tensor x = harness.put(1);
  const auto count = [&](const std::function<void()>& calls) {
    harness.sent();
    calls();
    return select(harness.sent(), isTemplate).size();
  };
  CHECK(count([&] { add(x, 1), add(x, 1), add(x, 2), add(x, 1.0), add(x, -0.0), add(x, 0.0), add(x, true); }) == 6);
  CHECK(count([&] { sum(x, {0}), sum(x, {0}), sum(x, {0}, true), sum(x, {0, 1}); }) == 3);
  CHECK(count([&] {
          for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat32}) {
            call("aten::sum", {x}, {{{"dtype", dtype}}, {}, {}});
          }
        }) == 2);
  CHECK(count([&] {
          call("aten::stack", {std::vector<Tensor>{x, x}});
          call("aten::stack", {std::vector<Tensor>{x, x}});
          call("aten::stack", {std::vector<Tensor>{x, x, x}});
          call("aten::index.Tensor", {x, std::vector<Tensor>{Tensor(), x}});
          call("aten::index.Tensor", {x, std::vector<Tensor>{x, Tensor()}});
        }) == 4);
  CHECK(count([&] {
          call("aten::clamp", {x, std::nullopt, 1});
          call("aten::clamp", {x, std::optional<double>(), 1});
        }) == 1);
}

TEST_CASE("Nested lists and named tensors take their places in order") {
  Harness harness;
  const Tensor x = harness.put(1);
  const Tensor y = harness.put(2);
  const Tensor z = harness.put(3);
  callMany("test::op", {std::vector<Tensor>{x, Tensor(), y}, 1}, 3, {{{"weight", z}}, {}, {}});
  const auto commands = harness.sent();
  const auto definition = select(commands, isTemplate).at(0).define_template();
  const auto& list = definition.arguments().positional(0).tensors().indices();
  CHECK(std::vector<int>(list.begin(), list.end()) == std::vector<int>{1, 0, 2});
  CHECK(definition.arguments().named(0).name() == "weight");
  CHECK(definition.arguments().named(0).value().tensor() == 2);
  CHECK(definition.outputs() == 3);
  CHECK(select(commands, isCall).at(0).inputs_size() == 3);
}

TEST_CASE("Templates are forgotten, all at once, when there are too many") {
  Harness harness;
  std::thread drain([&] {
    while (auto batch = nextBatch(harness.core->queue())) harness.core->queue().recycle(std::move(batch));
  });
  TemplateTable table;
  const std::vector<Argument> none;
  const Placements placements;
  std::uint32_t last = 0;
  for (std::uint32_t mesh = 0; mesh <= TemplateTable::kCapacity; ++mesh) {
    const auto entry = table.intern({"aten::zeros", none, {}, 1, mesh, placements}, 11);
    CHECK(entry.define != nullptr);
    last = entry.id;
  }
  CHECK(last == 1);
  harness.core->queue().finish();
  drain.join();
}

TEST_CASE("A tensor is released after its last use, once, and neighbours share a command") {
  Harness harness;
  {
    const Tensor x = harness.put(1);
    const Tensor copy = x;  // NOLINT(performance-unnecessary-copy-initialization)
    const Tensor y = add(x, x);
    CHECK(select(harness.sent(), [](const v1::Command& c) { return c.has_release(); }).empty());
  }
  const auto commands = harness.sent();
  REQUIRE(commands.size() == 1);
  const auto& released = commands[0].release().tensors();
  CHECK(std::vector<TensorId>(released.begin(), released.end()) == std::vector<TensorId>{2, 1});
}

TEST_CASE("A factory names its mesh; the default is all workers, replicated") {
  Harness harness;
  const Mesh one = *harness.core->mesh(*DeviceMesh::create(DeviceType::kCpu, {1}, {1}));
  harness.core->callOne("aten::ones", {Sizes{8}}, {}, harness.world, std::source_location::current());
  harness.core->callOne("aten::ones", {Sizes{8}}, {{}, one, {Placement::shard(0)}}, harness.world,
                        std::source_location::current());
  const auto commands = harness.sent();
  const auto meshes = select(commands, [](const v1::Command& c) { return c.has_define_mesh(); });
  REQUIRE(meshes.size() == 2);
  const auto templates = select(commands, isTemplate);
  REQUIRE(templates.size() == 2);
  CHECK(templates[0].define_template().mesh() == meshes[0].define_mesh().id());
  CHECK(templates[0].define_template().placements_size() == 0);
  CHECK(templates[1].define_template().mesh() == meshes[1].define_mesh().id());
  CHECK(templates[1].define_template().placements(0).shard() == 0);
  CHECK(harness.core->mesh(one.device())->device() == one.device());
  CHECK(harness.sent().empty());  // a mesh is defined once
}

TEST_CASE("A large put is chunked, a small one is inline, an empty one complete") {
  Harness harness;
  std::vector<v1::Command> commands;
  std::thread sender([&] {
    while (auto batch = nextBatch(harness.core->queue())) {
      commands.insert(commands.end(), batch->batch().commands().begin(), batch->batch().commands().end());
    }
  });
  std::vector<std::int32_t> values(3 << 20);
  std::iota(values.begin(), values.end(), 0);
  const auto put = [&](const HostView& view) {
    return harness.core->put({view}, true, view.meta, harness.world, {Placement::shard(0)}, {},
                             std::source_location::current());
  };
  const Tensor large = put(HostView::of(values, {3, 1 << 20}));
  const Tensor transposed = put(HostView::of(values, {1 << 20, 3}, {1, 1 << 20}));
  const Tensor small = put(HostView::of(values, {2, 3}));
  const Tensor empty = put(HostView::of(values, {0, 3}));
  harness.core->queue().finish();
  sender.join();

  std::vector<std::string> data;
  std::vector<std::uint64_t> totals;
  for (const v1::Command& command : commands) {
    if (command.has_put()) {
      data.push_back(command.put().inline_bytes());
      totals.push_back(command.put().total_bytes());
    } else if (command.has_put_chunk()) {
      CHECK(command.put_chunk().tensor() == data.size());  // puts do not interleave; tensors count from 1
      CHECK(command.put_chunk().offset() == data.back().size());
      data.back() += command.put_chunk().data();
    }
  }
  REQUIRE(totals == std::vector<std::uint64_t>{12u << 20, 12u << 20, 24, 0});
  for (std::size_t i = 0; i < data.size(); ++i) CHECK(data[i].size() == totals[i]);
  CHECK(data[0] == std::string(reinterpret_cast<const char*>(values.data()), 12u << 20));
  const auto* columns = reinterpret_cast<const std::int32_t*>(data[1].data());
  CHECK((columns[0] == 0 && columns[1] == 1 << 20 && columns[2] == 2 << 20 && columns[3] == 1));
}

TEST_CASE("Shards are sent one after the other with their shapes") {
  Harness harness;
  const std::vector<double> first{1, 2, 3, 4, 5, 6};
  const std::vector<double> second{7, 8, 9};
  harness.core->put({HostView::of(first, {2, 3}), HostView::of(second, {1, 3})}, false,
                    *makeMeta(DType::kFloat64, {3, 3}), harness.world, {Placement::shard(0)}, {},
                    std::source_location::current());
  const auto puts = select(harness.sent(), [](const v1::Command& c) { return c.has_put(); });
  REQUIRE(puts.size() == 1);
  CHECK(puts[0].put().parts());
  REQUIRE(puts[0].put().part_shapes_size() == 2);
  CHECK(puts[0].put().part_shapes(1).values(0) == 1);
  const auto* values = reinterpret_cast<const double*>(puts[0].put().inline_bytes().data());
  CHECK(std::vector<double>(values, values + 9) == std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8, 9});
}

TEST_CASE("What is wrong before anything is sent is an error of the tensor, and of all that depends on it") {
  Harness harness;
  Harness other;
  const std::vector<float> memory(3);
  const HostView view = HostView::of(memory, {4});
  const Tensor bad = harness.core->put({view}, true, view.meta, harness.world, {}, {}, std::source_location::current());
  const Tensor x = harness.put(1);
  harness.sent();
  const absl::Status status = add(x, mul(bad, 2.0)).get().get().status();
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK(std::string(status.message()).find("session_core_test.cc:") != std::string::npos);
  CHECK(operatorError(status)->operatorName == "put");
  CHECK(bad.redistribute({}).getLocal(0).poll());
  CHECK(harness.sent().empty());

  CHECK(add(x, other.put(1)).get().get().status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(call("aten::ones", {Sizes{1}}).get().get().status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(Tensor().get().get().status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(Tensor().describe().get().status().code() == absl::StatusCode::kInvalidArgument);
}

v1::FutureResult result(FutureId future, std::size_t offset, const std::string& data, bool done) {
  v1::FutureResult message;
  message.set_future(future);
  message.set_offset(offset);
  message.set_data(data);
  message.set_done(done);
  return message;
}

v1::FutureResult firstResult(FutureId future, std::int64_t bytes, const std::string& data, bool done) {
  v1::FutureResult message = result(future, 0, data, done);
  message.mutable_meta()->set_dtype(v1::DTYPE_UINT8);
  message.mutable_meta()->add_shape(bytes);
  return message;
}

TEST_CASE("A value is put together from its messages") {
  Harness harness;
  const Future<HostTensor> future = harness.put(1).get();
  const FutureId id = Harness::futureOf(select(harness.sent(), [](const v1::Command& c) { return c.has_get(); }).at(0));
  CHECK_FALSE(future.poll());
  CHECK(future.wait(std::chrono::milliseconds(1)).status().code() == absl::StatusCode::kDeadlineExceeded);

  SECTION("in pieces") {
    harness.core->onResult(firstResult(id, 5, "ab", false));
    harness.core->onResult(result(id, 2, "cde", false));
    CHECK_FALSE(future.poll());
    harness.core->onResult(result(id, 5, "", true));
    REQUIRE(future.poll());
    const auto value = future.get();
    REQUIRE(value.ok());
    CHECK(std::string(reinterpret_cast<const char*>(value->bytes().data()), 5) == "abcde");
    CHECK(future.get().ok());  // may be read again
  }
  SECTION("empty") {
    harness.core->onResult(firstResult(id, 0, "", true));
    CHECK(future.get()->numel() == 0);
  }
  SECTION("with a hole") {
    harness.core->onResult(firstResult(id, 5, "ab", false));
    harness.core->onResult(result(id, 3, "de", true));
    CHECK(future.get().status().code() == absl::StatusCode::kInternal);
  }
  SECTION("too long") {
    harness.core->onResult(firstResult(id, 5, "abcdef", true));
    CHECK(future.get().status().code() == absl::StatusCode::kInternal);
  }
  SECTION("too short") {
    harness.core->onResult(firstResult(id, 5, "ab", true));
    CHECK(future.get().status().code() == absl::StatusCode::kInternal);
  }
  SECTION("of an impossible shape") {
    harness.core->onResult(firstResult(id, -5, "", true));
    CHECK(future.get().status().code() == absl::StatusCode::kInvalidArgument);
  }
  harness.core->onResult(result(id, 0, "late", true));  // ignored
  harness.core->onResult(result(12345, 0, "unknown", true));
}

TEST_CASE("An error names operator, call site and rank, and keeps them for programs") {
  Harness harness;
  const Future<HostTensor> future = harness.put(1).get();
  v1::FutureResult message;
  message.set_future(Harness::futureOf(select(harness.sent(), [](const v1::Command& c) { return c.has_get(); }).at(0)));
  message.mutable_error()->set_code(static_cast<int>(absl::StatusCode::kInvalidArgument));
  message.mutable_error()->set_message("sizes do not match");
  message.mutable_error()->set_operator_name("aten::mm");
  message.mutable_error()->set_site("train.cc:41");
  message.mutable_error()->set_rank(2);
  harness.core->onResult(message);
  const absl::Status status = future.get().status();
  CHECK(status.message() == "aten::mm called at train.cc:41 on rank 1: sizes do not match");
  const auto error = operatorError(status);
  REQUIRE(error);
  CHECK(error->operatorName == "aten::mm");
  CHECK(error->rank == 1);
  CHECK(error->site == "train.cc:41");
  CHECK_FALSE(operatorError(absl::UnavailableError("gone")));
}

TEST_CASE("A description tells placements and mesh") {
  Harness harness;
  const Future<TensorInfo> future = harness.put(1).describe();
  const auto commands = select(harness.sent(), [](const v1::Command& c) { return c.has_describe(); });
  v1::FutureResult message = firstResult(commands.at(0).describe().future(), 5, "", true);
  message.set_mesh(1);
  message.add_placements()->set_shard(0);
  harness.core->onResult(message);
  const auto info = future.get();
  REQUIRE(info.ok());
  CHECK(info->meta.shape == Sizes{5});
  CHECK(info->placements == Placements{Placement::shard(0)});
  CHECK(info->mesh.device() == harness.world.device());
}

TEST_CASE("A future that nobody holds any more is cancelled") {
  Harness harness;
  const Tensor x = harness.put(1);
  harness.sent();
  { const Future<HostTensor> dropped = x.get(); }
  const auto commands = harness.sent();
  REQUIRE(commands.size() == 2);
  CHECK(commands[1].cancel_get().future() == Harness::futureOf(commands[0]));
}

TEST_CASE("The end of the connection fails every wait with its first cause, then and later") {
  Harness harness;
  const Tensor x = harness.put(1);
  const Future<HostTensor> before = x.get();
  std::future<absl::Status> waiting = std::async(std::launch::async, [&] { return before.get().status(); });
  harness.core->end(absl::UnavailableError("first"));
  harness.core->end(absl::InternalError("second"));
  CHECK(waiting.get() == absl::UnavailableError("first"));
  const Tensor after = add(x, harness.put(2));
  CHECK(after.get().get().status() == absl::UnavailableError("first"));
  CHECK(after.redistribute({}).describe().get().status() == absl::UnavailableError("first"));
  CHECK(Future<void>(harness.core->synchronize()).get() == absl::UnavailableError("first"));
}

TEST_CASE("Several threads call, wait and release at once") {
  Harness harness;
  std::thread daemon([&] {
    while (auto batch = nextBatch(harness.core->queue())) {
      for (const v1::Command& command : batch->batch().commands()) {
        if (command.has_get()) harness.core->onResult(firstResult(command.get().future(), 1, "x", true));
      }
      harness.core->queue().recycle(std::move(batch));
    }
  });
  std::vector<std::thread> threads;
  std::atomic<int> good = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      Tensor x = harness.put(1);
      for (int i = 0; i < 500; ++i) {
        x = add(x, x);
        if (i % 50 == 0 && x.get().get().ok()) ++good;
        if (i % 50 == 1) x.get();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  harness.core->queue().finish();
  daemon.join();
  CHECK(good == 40);
}

}  // namespace
}  // namespace dtorch
