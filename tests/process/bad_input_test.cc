// What a client does wrong costs it a status that says what to do; the daemon, its workers and other sessions go on.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "client/cpp/operators.h"
#include "client/cpp/session.h"
#include "dtorch/v1/client.grpc.pb.h"
#include "proto/version.h"
#include "tests/catch.h"
#include "tests/process/daemon_fixture.h"

namespace dtorch {
namespace {

constexpr auto kDeadline = std::chrono::seconds(20);
using Sizes = std::vector<std::int64_t>;

// The same workers still compute: asked after each fault.
void checkAlive(Session& session) {
  const auto sum = session.call("aten::sum", {session.call("aten::ones", {Sizes{4}})}).get().wait(kDeadline);
  REQUIRE(sum.ok());
  REQUIRE(*sum->item() == 4.0);
}

absl::Status errorOf(const Tensor& tensor) { return tensor.get().wait(kDeadline).status(); }

bool mentions(const absl::Status& status, const std::string& text) {
  return std::string(status.message()).find(text) != std::string::npos;
}

// A client that speaks the wire itself, to say what the library would not.
class RawClient {
 public:
  explicit RawClient(const DaemonFixture& daemon)
      : channel_(grpc::CreateChannel("unix:" + daemon.socket(), grpc::InsecureChannelCredentials())), stub_(channel_) {
    context_.set_deadline(std::chrono::system_clock::now() + kDeadline);
    call_ = stub_.PrepareCall(&context_, "/dtorch.v1.Dtorch/Session", &queue_);
    call_->StartCall(tag());
    next();
  }
  ~RawClient() {
    context_.TryCancel();
    queue_.Shutdown();
    void* ignored = nullptr;
    bool ok = false;
    while (queue_.Next(&ignored, &ok)) {
    }
  }
  bool sendBytes(const std::string& bytes) {
    const grpc::Slice slice(bytes);
    call_->Write(grpc::ByteBuffer(&slice, 1), tag());
    return next();
  }
  bool send(const v1::ClientMessage& message) { return sendBytes(message.SerializeAsString()); }
  void hello(std::uint32_t protocol = kProtocolVersion) {
    v1::ClientMessage message;
    message.mutable_hello()->set_protocol(protocol);
    send(message);
  }
  bool read(v1::DaemonMessage* message) {
    grpc::ByteBuffer buffer;
    call_->Read(&buffer, tag());
    if (!next()) return false;
    grpc::Slice slice;
    return buffer.TrySingleSlice(&slice).ok() && message->ParseFromArray(slice.begin(), static_cast<int>(slice.size()));
  }
  grpc::Status finish() {
    grpc::Status status;
    call_->Finish(&status, tag());
    next();
    return status;
  }

 private:
  void* tag() { return this; }
  bool next() {
    void* ignored = nullptr;
    bool ok = false;
    return queue_.Next(&ignored, &ok) && ok;
  }
  std::shared_ptr<grpc::Channel> channel_;
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

grpc::Status endOf(RawClient& client) {
  v1::DaemonMessage message;
  while (client.read(&message)) {
  }
  return client.finish();
}

v1::ClientMessage batchOf(const v1::Command& command) {
  v1::ClientMessage message;
  *message.mutable_batch()->add_commands() = command;
  return message;
}

TEST_CASE("wrong calls get a status, and everything goes on") {
  DaemonFixture daemon;
  const auto session = daemon.connect();
  const std::vector<float> four = {1, 2, 3, 4};
  const Tensor x = session->put(HostView::of(four, {2, 2}), session->mesh());
  const Tensor wide = session->put(HostView::of(four, {1, 4}), session->mesh());

  SECTION("unknown operator, with what exists") {
    const absl::Status error = errorOf(session->call("aten::no_such_operator", {x}));
    CHECK(absl::IsNotFound(error));
    CHECK(mentions(error, "aten::no_such_operator"));
    CHECK(mentions(error, "bad_input_test.cc"));
    CHECK(mentions(errorOf(session->call("aten::add", {x, x})), "aten::add.Tensor"));
  }
  SECTION("arity, names and types") {
    CHECK(absl::IsInvalidArgument(errorOf(session->call("aten::mm", {x}))));
    CHECK(absl::IsInvalidArgument(errorOf(session->call("aten::mm", {x, x, x}))));
    CHECK(mentions(errorOf(session->call("aten::mm", {x, "text"})), "mat2"));
    CHECK(mentions(errorOf(session->call("aten::sum", {x}, {.named = {{"nonsense", 1}}})), "nonsense"));
    CHECK(absl::IsInvalidArgument(errorOf(session->callMany("aten::max.dim", {x, 0}, 1)[0])));
  }
  SECTION("shapes, and operators that may not be called") {
    const absl::Status error = errorOf(session->call("aten::mm", {x, wide}));
    CHECK(absl::IsInvalidArgument(error));
    CHECK(mentions(error, "aten::mm"));
    CHECK(absl::IsPermissionDenied(errorOf(session->call("aten::from_file", {"/etc/passwd"}))));
    CHECK(absl::IsUnimplemented(errorOf(session->call("aten::rand", {Sizes{2}}))));
  }
  SECTION("the first cause reaches what depends on it") {
    const Tensor bad = session->call("aten::mm", {x, wide});
    Tensor later = bad;
    for (int i = 0; i < 10; ++i) later = session->call("aten::add.Tensor", {later, x});
    CHECK(mentions(errorOf(later), "aten::mm"));
  }
  SECTION("a kernel that fails on the worker") {
    const std::vector<std::int64_t> index = {7};
    const Tensor far = session->put(HostView::of(index, {1, 1}), session->mesh());
    const Tensor bad = session->call("aten::gather", {x, 0, far});
    const absl::Status error = errorOf(session->call("aten::add.Tensor", {bad, bad}));
    CHECK(absl::IsInvalidArgument(error));
    CHECK(mentions(error, "aten::gather"));
    CHECK(mentions(error, "bad_input_test.cc"));
    CHECK(daemon.status().operators_failed() >= 1);
  }
  SECTION("sizes that overflow or do not fit") {
    for (const Sizes& sizes :
         {Sizes{2, 2, 1, std::int64_t{1} << 61}, Sizes(64, 2), Sizes{std::int64_t{1} << 32, std::int64_t{1} << 32},
          Sizes{std::int64_t{1} << 62, 4}, Sizes{-1, 3}, Sizes{std::int64_t{1} << 40}}) {
      const absl::Status error = errorOf(session->call("aten::zeros", {sizes}));
      CHECK((absl::IsInvalidArgument(error) || absl::IsResourceExhausted(error)));
    }
    const auto empty = session->call("aten::zeros", {Sizes{0, 5}}).get().wait(kDeadline);
    REQUIRE(empty.ok());
    CHECK(empty->numel() == 0);
  }
  SECTION("ranks, meshes and placements that do not exist") {
    CHECK_FALSE(session->mesh({0, 7}).ok());
    CHECK(absl::IsInvalidArgument(
        errorOf(session->put(HostView::of(four, {2, 2}), session->mesh(), {Placement::shard(5)}))));
    CHECK(absl::IsInvalidArgument(errorOf(x.redistribute({Placement::shard(2)}))));
    CHECK(absl::IsInvalidArgument(errorOf(x.redistribute({Placement::replicate(), Placement::replicate()}))));
    CHECK_FALSE(x.getLocal(9).wait(kDeadline).ok());
  }
  SECTION("parts that are no chunk layout are refused") {
    const std::vector<float> parts = {1, 2, 3, 4};
    const std::vector<HostView> uneven = {HostView::of(std::vector<float>{1}, {1}), HostView::of(parts, {4})};
    CHECK(absl::IsInvalidArgument(errorOf(session->putShards(uneven, {5}, session->mesh(), {Placement::shard(0)}))));
  }
  SECTION("what was refused in place cannot be read as if nothing were") {
    const Tensor sum = session->put(HostView::of(four, {2, 2}), session->mesh(), {Placement::partial()});
    session->call("aten::add_.Scalar", {sum, 1});
    CHECK(mentions(errorOf(sum), "aten::add_.Scalar"));
    CHECK(absl::IsUnimplemented(errorOf(session->call("aten::t_", {wide}))));
  }
  SECTION("a redistribution is a tensor of its own, to the same placement too") {
    const Tensor same = x.redistribute({Placement::replicate()});
    session->call("aten::mul_.Scalar", {same, 10});
    const auto value = x.get().wait(kDeadline);
    REQUIRE(value.ok());
    CHECK((*value->values<float>())[0] == 1.0F);
  }
  SECTION("a call too large to send") {
    CHECK(absl::IsInvalidArgument(errorOf(session->call("aten::add.Tensor", {x, std::string(80 << 20, 'x')}))));
  }
  SECTION("a factory takes no memory of the daemon's") {
    const std::int64_t before = daemon.status().resident_bytes();
    const Tensor zeros =
        session->call("aten::zeros", {Sizes{1 << 26}}, {.mesh = session->mesh(), .placements = {Placement::shard(0)}});
    CHECK(zeros.describe().wait(kDeadline).ok());
    CHECK(daemon.status().resident_bytes() < before + (64 << 20));
    CHECK(absl::IsResourceExhausted(errorOf(session->call("aten::zeros", {Sizes{std::int64_t{1} << 38}}))));
  }
  SECTION("names that are no UTF-8") { CHECK_FALSE(errorOf(session->call("aten::\xff\xfe", {x})).ok()); }

  checkAlive(*session);
  checkAlive(*daemon.connect());
}

TEST_CASE("values of every size cross both ways") {
  DaemonFixture daemon;
  const auto session = daemon.connect();
  std::mt19937_64 random(17);
  for (const std::size_t bytes : {0UL, 1UL, 4194304UL - 16, 4194304UL, 4194305UL, 64UL << 20, 300UL << 20}) {
    std::vector<std::uint8_t> data(bytes);
    for (std::size_t i = 0; i < bytes; i += 997) data[i] = static_cast<std::uint8_t>(random());
    const Placement placement = bytes % 2 == 0 ? Placement::shard(0) : Placement::replicate();
    const Tensor tensor =
        session->put(HostView::of(data, {static_cast<std::int64_t>(bytes)}), session->mesh(), {placement});
    const auto back = tensor.get().wait(std::chrono::seconds(60));
    INFO(bytes << " bytes: " << back.status());
    REQUIRE(back.ok());
    const auto values = *back->values<std::uint8_t>();
    REQUIRE(std::equal(values.begin(), values.end(), data.begin(), data.end()));
  }
  checkAlive(*session);
}

TEST_CASE("scalars keep every bit") {
  DaemonFixture daemon;
  const auto session = daemon.connect();
  const auto scalar = [&](const Value& value, DType dtype) {
    return session->call("aten::full", {Sizes{1}, value}, {.named = {{"dtype", dtype}}}).get().wait(kDeadline);
  };
  CHECK((*scalar(std::int64_t{9007199254740993}, DType::kInt64)->values<std::int64_t>())[0] == 9007199254740993);
  CHECK((*scalar(std::numeric_limits<std::int64_t>::min(), DType::kInt64)->values<std::int64_t>())[0] ==
        std::numeric_limits<std::int64_t>::min());
  CHECK((*scalar(0.1, DType::kFloat64)->values<double>())[0] == 0.1);
  CHECK(std::signbit((*scalar(-0.0, DType::kFloat64)->values<double>())[0]));
  CHECK(std::isnan((*scalar(std::nan(""), DType::kFloat64)->values<double>())[0]));
  CHECK(std::isinf((*scalar(std::numeric_limits<double>::infinity(), DType::kFloat64)->values<double>())[0]));
}

TEST_CASE("ever new scalars do not fill the daemon or its workers") {
  DaemonFixture daemon;
  const auto session = daemon.connect();
  const std::vector<float> one = {1};
  const Tensor x = session->put(HostView::of(one, {1}), session->mesh());
  std::int64_t before = 0;
  for (int i = 0; i < 120000; ++i) {
    const Tensor y = session->call("aten::mul.Scalar", {x, 1.0 + i});
    if (i % 40000 != 39999) continue;
    const auto value = y.get().wait(kDeadline);
    REQUIRE(value.ok());
    CHECK(*value->item() == 1.0 + i);
    const std::int64_t resident = daemon.status().resident_bytes();
    if (before == 0) before = resident;
    CHECK(resident < before + (32 << 20));
  }
  checkAlive(*session);
}

TEST_CASE("a stream that breaks the protocol ends alone, with the reason") {
  DaemonFixture daemon;
  const auto session = daemon.connect();

  SECTION("bytes that do not parse") {
    RawClient client(daemon);
    client.sendBytes(std::string("\xff\xff\xff\xff garbage", 12));
    CHECK(endOf(client).error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  }
  SECTION("another version") {
    RawClient client(daemon);
    client.hello(kProtocolVersion + 1);
    const grpc::Status end = endOf(client);
    CHECK(end.error_code() == grpc::StatusCode::FAILED_PRECONDITION);
    CHECK(end.error_message().find(std::to_string(kProtocolVersion + 1)) != std::string::npos);
  }
  SECTION("commands without a hello, a second hello, an empty message") {
    RawClient first(daemon);
    first.send(batchOf({}));
    CHECK(endOf(first).error_code() == grpc::StatusCode::FAILED_PRECONDITION);
    RawClient second(daemon);
    second.hello();
    second.hello();
    CHECK(endOf(second).error_code() == grpc::StatusCode::INVALID_ARGUMENT);
    RawClient third(daemon);
    third.sendBytes("");
    CHECK(endOf(third).error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  }
  SECTION("commands that make no sense") {
    std::vector<v1::Command> commands(5);
    commands[1].set_template_id(99);
    commands[2].mutable_put_chunk()->set_tensor(4);
    v1::DeviceMesh* mesh = commands[3].mutable_define_mesh()->mutable_mesh();
    mesh->set_device_type(v1::DEVICE_TYPE_CPU);
    mesh->add_shape(2);
    mesh->add_ranks(0);
    mesh->add_ranks(0);
    commands[4].mutable_define_template()->set_id(0);
    for (const v1::Command& command : commands) {
      RawClient client(daemon);
      client.hello();
      client.send(batchOf(command));
      CHECK(endOf(client).error_code() == grpc::StatusCode::INVALID_ARGUMENT);
    }
  }
  SECTION("tensors of another session, or released ones, are unknown") {
    RawClient client(daemon);
    client.hello();
    v1::Command get;
    get.mutable_get()->set_tensor(1);
    get.mutable_get()->set_future(5);
    client.send(batchOf(get));
    v1::DaemonMessage message;
    REQUIRE(client.read(&message));
    REQUIRE(message.has_welcome());
    REQUIRE(client.read(&message));
    CHECK(message.result().future() == 5);
    CHECK(message.result().error().code() == static_cast<int>(absl::StatusCode::kNotFound));
  }
  SECTION("random bytes") {
    std::mt19937 random(4);
    for (int round = 0; round < 200; ++round) {
      RawClient client(daemon);
      client.hello();
      std::string bytes(random() % 200, '\0');
      for (char& byte : bytes) byte = static_cast<char>(random());
      client.sendBytes(bytes);
    }
  }
  checkAlive(*session);
  checkAlive(*daemon.connect());
}

}  // namespace
}  // namespace dtorch
