// What a client sends that the library never would: it harms its own session alone.
#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "client/cpp/session.h"
#include "tests/catch.h"
#include "tests/process/daemon_fixture.h"
#include "tests/process/hostile_messages.h"
#include "tests/process/raw_client.h"

namespace dtorch {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kDeadline = std::chrono::seconds(20);
using Sizes = std::vector<std::int64_t>;

void checkAlive(const DaemonFixture& daemon) {
  const auto session = daemon.connect();
  const auto sum = session->call("aten::sum", {session->call("aten::ones", {Sizes{4}})}).get().wait(kDeadline);
  REQUIRE(sum.ok());
  REQUIRE(*sum->item() == 4.0);
}

TEST_CASE("a stream that breaks the protocol ends alone, with the reason") {
  DaemonFixture daemon;
  const auto session = daemon.connect();

  SECTION("bytes that do not parse") {
    RawClient client(daemon);
    client.sendBytes(std::string("\xff\xff\xff\xff garbage", 12));
    CHECK(client.end().error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  }
  SECTION("another version") {
    RawClient client(daemon);
    client.hello(kProtocolVersion + 1);
    const grpc::Status end = client.end();
    CHECK(end.error_code() == grpc::StatusCode::FAILED_PRECONDITION);
    CHECK(end.error_message().find(std::to_string(kProtocolVersion + 1)) != std::string::npos);
  }
  SECTION("commands without a hello, a second hello, an empty message") {
    RawClient first(daemon);
    first.send(v1::Command());
    CHECK(first.end().error_code() == grpc::StatusCode::FAILED_PRECONDITION);
    RawClient second(daemon);
    second.hello();
    second.hello();
    CHECK(second.end().error_code() == grpc::StatusCode::INVALID_ARGUMENT);
    RawClient third(daemon);
    third.sendBytes("");
    CHECK(third.end().error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  }
  SECTION("commands that make no sense") {
    std::vector<v1::Command> commands(7);
    commands[1].set_template_id(99);
    commands[2].mutable_put_chunk()->set_tensor(4);
    commands[3] = meshOfTwo(1);
    commands[3].mutable_define_mesh()->mutable_mesh()->set_ranks(1, 0);
    commands[4] = timesScalar(0, 1);
    commands[5].mutable_define_site()->set_id(0);
    commands[6] = meshOfTwo(1);
    commands[6].mutable_define_mesh()->mutable_mesh()->set_ranks(1, 7);
    for (const v1::Command& command : commands) {
      RawClient client(daemon);
      client.hello();
      client.send(command);
      CHECK(client.end().error_code() == grpc::StatusCode::INVALID_ARGUMENT);
    }
  }
  SECTION("more definitions than a session may have") {
    for (const std::uint32_t id : {0U, 4097U}) {
      RawClient client(daemon);
      client.hello();
      client.send(meshOfTwo(id));
      CHECK(client.end().error_code() == grpc::StatusCode::INVALID_ARGUMENT);
    }
    RawClient client(daemon);
    client.hello();
    v1::Command large = timesScalar(1, 1);
    large.mutable_define_template()->set_name(std::string(15 << 20, 'x'));
    for (std::uint32_t id = 1; id <= 18; ++id) {
      large.mutable_define_template()->set_id(id);
      client.send(large);
    }
    CHECK(client.end().error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  }
  SECTION("a put begun twice, bytes out of place, a put that ends in nothing") {
    const auto sent = [&](const std::vector<v1::Command>& commands) {
      RawClient client(daemon);
      client.hello();
      client.send(meshOfTwo(1));
      for (const v1::Command& command : commands) client.send(command);
      client.doneSending();
      return client.end().error_code();
    };
    const v1::Command begun = putOfFloats(1, 1 << 20, "");
    v1::Command chunk;
    chunk.mutable_put_chunk()->set_tensor(1);
    chunk.mutable_put_chunk()->set_offset(4);
    chunk.mutable_put_chunk()->set_data("1234");
    CHECK(sent({begun, begun}) == grpc::StatusCode::INVALID_ARGUMENT);
    CHECK(sent({begun, chunk}) == grpc::StatusCode::INVALID_ARGUMENT);
    CHECK(sent({begun}) == grpc::StatusCode::OK);
  }
  checkAlive(daemon);
  CHECK(session->synchronize().wait(kDeadline).ok());
}

// protocolbuffers/protobuf#28834: what parses is not yet what can be.
TEST_CASE("each kind of malformed request is refused for what it is") {
  DaemonFixture daemon;

  SECTION("of a tensor: the tensor has no value, and says why") {
    const auto errorOf = [&](const std::function<void(v1::Put*)>& spoil) {
      RawClient client(daemon);
      client.hello();
      client.send(meshOfTwo(1));
      v1::Command command = putOfFloats(5, 4, std::string(16, 'x'));
      spoil(command.mutable_put());
      client.send(command);
      client.send(getOf(5, 1));
      v1::FutureResult result;
      REQUIRE(client.readResult(1, &result));
      return absl::Status(static_cast<absl::StatusCode>(result.error().code()), result.error().message());
    };
    CHECK(errorOf([](v1::Put*) {}).ok());
    const auto refused = [&](const std::function<void(v1::Put*)>& spoil) {
      const absl::Status error = errorOf(spoil);
      INFO(error);
      CHECK(absl::IsInvalidArgument(error));
    };
    refused([](v1::Put* put) { put->mutable_meta()->set_dtype(static_cast<v1::DType>(999)); });
    refused([](v1::Put* put) { put->mutable_meta()->clear_dtype(); });
    refused([](v1::Put* put) { put->mutable_placements(0)->set_partial(static_cast<v1::ReduceOp>(999)); });
    refused([](v1::Put* put) { put->mutable_placements(0)->Clear(); });
    refused([](v1::Put* put) { put->clear_placements(); });
    refused([](v1::Put* put) { put->add_placements()->set_replicate(true); });
    refused([](v1::Put* put) { put->mutable_placements(0)->set_shard(1); });
    refused([](v1::Put* put) { put->mutable_meta()->set_shape(0, -4); });
  }
  SECTION("of a call: its results have no value, and say why") {
    const auto errorOf = [&](const std::function<void(v1::TemplateDefinition*)>& spoil) {
      RawClient client(daemon);
      client.hello();
      client.send(meshOfTwo(1));
      client.send(putOfFloats(1, 4, std::string(16, 'x')));
      v1::Command command = timesScalar(1, 2.0);
      spoil(command.mutable_define_template());
      client.send(command);
      client.send(callOf(1, 1, 2));
      client.send(getOf(2, 1));
      v1::FutureResult result;
      REQUIRE(client.readResult(1, &result));
      return absl::Status(static_cast<absl::StatusCode>(result.error().code()), result.error().message());
    };
    using Template = v1::TemplateDefinition;
    CHECK(errorOf([](Template*) {}).ok());
    CHECK(absl::IsNotFound(errorOf([](Template* call) { call->set_name("aten::no_such"); })));
    const auto refused = [&](const std::function<void(Template*)>& spoil) {
      const absl::Status error = errorOf(spoil);
      INFO(error);
      CHECK(absl::IsInvalidArgument(error));
    };
    refused([](Template* call) { call->mutable_arguments()->mutable_positional()->RemoveLast(); });
    refused([](Template* call) { call->mutable_arguments()->add_positional()->set_integer(1); });
    refused([](Template* call) { call->mutable_arguments()->mutable_positional(1)->Clear(); });
    refused([](Template* call) { call->mutable_arguments()->mutable_positional(1)->set_dtype(v1::DType(999)); });
    refused([](Template* call) { call->mutable_arguments()->mutable_positional(1)->set_tensor(7); });
    refused([](Template* call) { call->set_outputs(2); });
    refused([](Template* call) {
      v1::Value* value = call->mutable_arguments()->mutable_positional(1);
      for (int depth = 0; depth < 40; ++depth) value = value->mutable_values()->add_values();
    });
  }
  SECTION("of the session itself: it ends") {
    const auto ends = [&](const v1::Command& command) {
      RawClient client(daemon);
      client.hello();
      client.send(command);
      CHECK(client.end().error_code() == grpc::StatusCode::INVALID_ARGUMENT);
    };
    v1::Command command = meshOfTwo(1);
    command.mutable_define_mesh()->mutable_mesh()->set_device_type(static_cast<v1::DeviceType>(999));
    ends(command);
    command = meshOfTwo(1);
    command.mutable_define_mesh()->mutable_mesh()->clear_ranks();
    ends(command);
    command = meshOfTwo(1);
    command.mutable_define_mesh()->mutable_mesh()->set_ranks(0, -1);
    ends(command);
    command = timesScalar(1, 2.0);  // deeper than Protobuf follows
    v1::Value* value = command.mutable_define_template()->mutable_arguments()->add_positional();
    for (int depth = 0; depth < 101; ++depth) value = value->mutable_values()->add_values();
    ends(command);
    RawClient client(daemon);  // two futures of one number
    client.hello();
    client.send(meshOfTwo(1));
    client.send(putOfFloats(1, 1 << 20, std::string(4 << 20, 'x')));
    v1::ClientMessage twice;
    *twice.mutable_batch()->add_commands() = getOf(1, 1);
    *twice.mutable_batch()->add_commands() = getOf(1, 1);
    client.send(twice);
    CHECK(client.end().error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  }
  checkAlive(daemon);
}

TEST_CASE("tensors of another session, and released ones, are unknown") {
  DaemonFixture daemon;
  const auto owner = daemon.connect();
  const std::vector<float> secret = {42};
  std::vector<Tensor> held;
  for (int i = 0; i < 20; ++i) held.push_back(owner->put(HostView::of(secret, {1}), owner->mesh()));
  REQUIRE(owner->synchronize().wait(kDeadline).ok());

  RawClient client(daemon);
  client.hello();
  v1::ClientMessage message;
  *message.mutable_batch()->add_commands() = meshOfTwo(1);
  *message.mutable_batch()->add_commands() = timesScalar(1, 2.0);
  *message.mutable_batch()->add_commands() = putOfFloats(1000, 1, "1234");
  v1::Command release;
  release.mutable_release()->add_tensors(1000);
  *message.mutable_batch()->add_commands() = release;
  client.send(message);
  // The ids that the owner uses, the workers' names of its tensors, and this session's own released one.
  std::vector<std::uint64_t> ids = {1000};
  for (std::uint64_t i = 1; i <= 20; ++i) {
    ids.push_back(i);
    ids.push_back((owner->id() << kSessionShift) + i);
  }
  std::uint64_t future = 1;
  for (const std::uint64_t id : ids) {
    v1::FutureResult result;
    client.send(getOf(id, future));
    REQUIRE(client.readResult(future++, &result));
    CHECK(result.error().code() == static_cast<int>(absl::StatusCode::kNotFound));
    client.send(callOf(1, id, 5000 + future));
    client.send(getOf(5000 + future, future));
    REQUIRE(client.readResult(future++, &result));
    CHECK(result.error().code() == static_cast<int>(absl::StatusCode::kNotFound));
    v1::Command releaseOther;
    releaseOther.mutable_release()->add_tensors(id);
    client.send(releaseOther);
  }
  for (const Tensor& tensor : held) CHECK(*tensor.get().wait(kDeadline)->item() == 42.0);
}

TEST_CASE("a session with some bytes changed is served or refused, and harms nobody") {
  DaemonFixture daemon;
  {
    RawClient client(daemon);
    client.hello();
    client.send(wholeSession());
    v1::DaemonMessage message;
    for (int results = 0; results < 3;) {
      REQUIRE(client.read(&message));
      if (!message.has_result()) continue;
      REQUIRE(message.result().error().code() == 0);
      ++results;
    }
  }
  const std::string valid = wholeSession().SerializeAsString();
  std::mt19937 random(20261);
  int served = 0;
  int refused = 0;
  for (int round = 0; round < 400; ++round) {
    std::string bytes = valid;
    for (std::uint32_t change = random() % 4; change < 4; ++change) {
      const std::size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << (random() % 8)));
          break;
        case 2:
          bytes.erase(at, 1 + random() % 8);
          break;
        default:
          bytes.insert(at, valid, random() % valid.size(), 1 + random() % 16);
      }
    }
    RawClient client(daemon);
    client.hello();
    client.sendBytes(bytes);
    client.doneSending();
    const grpc::Status end = client.end();
    INFO("round " << round << ": " << end.error_code() << " " << end.error_message());
    // Not an internal error, not a lost daemon, not a hang.
    const bool refusal = end.error_code() == grpc::StatusCode::INVALID_ARGUMENT ||
                         end.error_code() == grpc::StatusCode::FAILED_PRECONDITION ||
                         end.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED;
    REQUIRE((end.ok() || refusal));
    ++(end.ok() ? served : refused);
    if (round % 100 == 99) checkAlive(daemon);
  }
  CHECK(served > 20);
  CHECK(refused > 20);
}

TEST_CASE("a request of many thousand new operators holds up neither status nor other sessions") {
  DaemonFixture daemon;
  v1::ClientMessage message;
  *message.mutable_batch()->add_commands() = meshOfTwo(1);
  *message.mutable_batch()->add_commands() = putOfFloats(1, 1, "1234");
  constexpr std::uint32_t kCalls = 5000;
  for (std::uint32_t i = 0; i < kCalls; ++i) {
    *message.mutable_batch()->add_commands() = timesScalar(1, 1.0 + i);
    *message.mutable_batch()->add_commands() = callOf(1, 1, 2 + i);
    v1::Command release;
    release.mutable_release()->add_tensors(2 + i);
    *message.mutable_batch()->add_commands() = release;
  }
  *message.mutable_batch()->add_commands() = getOf(1, 1);
  constexpr int kClients = 12;
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.push_back(std::make_unique<RawClient>(daemon));
    clients.back()->hello();
    clients.back()->send(message);
  }
  std::uint64_t asked = 0;
  std::uint64_t done = 0;
  while (done < kCalls) {
    const auto start = Clock::now();
    done = 0;
    const v1::StatusReply status = daemon.status();
    for (const v1::SessionStatus& session : status.sessions()) done = std::max(done, session.operators());
    REQUIRE(Clock::now() - start < std::chrono::seconds(1));
    const auto before = Clock::now();
    checkAlive(daemon);
    REQUIRE(Clock::now() - before < std::chrono::seconds(2));
    ++asked;
  }
  CHECK(asked > 2);  // the request did take some time
  v1::FutureResult result;
  REQUIRE(clients.front()->readResult(1, &result));
  CHECK(result.data() == "1234");
}

TEST_CASE("what a client defines again and again is forgotten") {
  DaemonFixture daemon;
  const std::int64_t before = daemon.status().resident_bytes();
  SECTION("meshes") {
    v1::ClientMessage message;
    for (int i = 0; i < 100000; ++i) {
      v1::Command mesh = meshOfTwo(1);
      mesh.mutable_define_mesh()->mutable_mesh()->add_names("name " + std::to_string(i));
      *message.mutable_batch()->add_commands() = mesh;
    }
    RawClient client(daemon);
    client.hello();
    client.send(message);
    client.doneSending();
    CHECK(client.end().ok());
  }
  SECTION("templates of many bytes") {
    RawClient client(daemon);
    client.hello();
    client.send(meshOfTwo(1));
    for (int i = 0; i < 60; ++i) {
      v1::Command command;
      v1::TemplateDefinition* definition = command.mutable_define_template();
      definition->set_id(1);
      definition->set_name("aten::zeros");
      definition->set_outputs(1);
      definition->set_mesh(1);
      v1::IntList* sizes = definition->mutable_arguments()->add_positional()->mutable_integers();
      for (int j = 0; j < 2000000; ++j) sizes->add_values(1 + i);
      client.send(command);
    }
    client.doneSending();
    CHECK(client.end().ok());
  }
  checkAlive(daemon);
  CHECK(daemon.status().resident_bytes() < before + (std::int64_t{1} << 30));
}

TEST_CASE("a client that does not read is not worked for") {
  DaemonFixture daemon;
  const std::int64_t before = daemon.status().resident_bytes();
  v1::ClientMessage message;
  *message.mutable_batch()->add_commands() = meshOfTwo(1);
  *message.mutable_batch()->add_commands() = putOfFloats(1, 15000, std::string(60000, 'x'));
  constexpr std::uint64_t kGets = 100000;  // 6 GB
  for (std::uint64_t future = 1; future <= kGets; ++future) {
    *message.mutable_batch()->add_commands() = getOf(1, future);
  }
  RawClient client(daemon);
  client.hello();
  client.send(message);
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    REQUIRE(daemon.status().resident_bytes() < before + (std::int64_t{700} << 20));
  }
  checkAlive(daemon);
  v1::FutureResult result;
  REQUIRE(client.readResult(3000, &result));  // reading, it gets on
  CHECK(result.data().size() == 60000);
}

TEST_CASE("an id that is in use is refused before anything is made") {
  DaemonFixture daemon({.workers = 2, .flags = {"--heartbeat.interval", "100ms", "--heartbeat.silent_after", "10s"}});
  for (int round = 0; round < 3; ++round) {
    RawClient client(daemon);
    client.hello();
    client.send(meshOfTwo(1));
    v1::Command ones;
    ones.mutable_define_template()->set_id(1);
    ones.mutable_define_template()->set_name("aten::ones");
    ones.mutable_define_template()->set_outputs(1);
    ones.mutable_define_template()->set_mesh(1);
    ones.mutable_define_template()->mutable_arguments()->add_positional()->mutable_integers()->add_values(1 << 20);
    client.send(ones);
    v1::Command call;
    call.set_template_id(1);
    call.set_first_output(1);
    client.send(call);
    client.send(call);
    CHECK(client.end().error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  }
  checkAlive(daemon);
  std::int64_t held = -1;
  for (int i = 0; i < 50 && held != 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    held = 0;
    const v1::StatusReply status = daemon.status();
    for (const v1::WorkerStatus& worker : status.workers()) held += worker.tensor_bytes();
  }
  CHECK(held == 0);
}

TEST_CASE("a put takes memory as its bytes come") {
  DaemonFixture daemon;
  const std::int64_t before = daemon.status().resident_bytes();
  RawClient client(daemon);
  client.hello();
  client.send(meshOfTwo(1));
  client.send(putOfFloats(1, 256 << 20, ""));  // 1 GiB
  v1::Command chunk;
  chunk.mutable_put_chunk()->set_tensor(1);
  chunk.mutable_put_chunk()->set_data(std::string(1 << 20, 'x'));
  client.send(chunk);
  client.send(getOf(77, 1));  // an unknown one: its answer comes after the chunk was taken
  v1::FutureResult result;
  REQUIRE(client.readResult(1, &result));
  CHECK(daemon.status().resident_bytes() < before + (64 << 20));
}

}  // namespace
}  // namespace dtorch
