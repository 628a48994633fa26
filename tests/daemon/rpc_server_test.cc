// The clients' gRPC server with a listener of the test's own, and raw gRPC clients.
#include <fcntl.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/rpc/server.h"
#include "dtorch/v1/client.grpc.pb.h"
#include "proto/version.h"
#include "tests/catch.h"
#include "tests/daemon/rpc_processes.h"

namespace dtorch {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

std::int64_t since(Clock::time_point start) {
  return std::chrono::duration_cast<milliseconds>(Clock::now() - start).count();
}

/// Answers each request with a result of the same number, and keeps count. Thread: safe.
class FakeListener final : public SessionListener {
 public:
  struct Seen {
    std::shared_ptr<SessionChannel> channel;
    int requests = 0;
    int drained = 0;
    int closed = 0;
  };

  SessionId onOpen(std::shared_ptr<SessionChannel> channel) override {
    const std::lock_guard lock(mutex_);
    sessions_[++last_].channel = std::move(channel);
    changed_.notify_all();
    return last_;
  }
  void onRequest(SessionId id, std::unique_ptr<ClientRequest> request) override {
    std::shared_ptr<SessionChannel> channel;
    {
      const std::lock_guard lock(mutex_);
      ++sessions_[id].requests;
      channel = sessions_[id].channel;
      changed_.notify_all();
      if (holding) return;
    }
    auto answer = std::make_shared<v1::DaemonMessage>();
    const auto& commands = request->message()->batch().commands();
    if (!commands.empty()) answer->mutable_result()->set_future(commands[0].first_output());
    channel->send(std::move(answer));
    channel->readNext();
  }
  void onDrained(SessionId id) override {
    const std::lock_guard lock(mutex_);
    ++sessions_[id].drained;
    changed_.notify_all();
  }
  void onClosed(SessionId id, bool /*lost*/) override {
    const std::lock_guard lock(mutex_);
    ++sessions_[id].closed;
    changed_.notify_all();
  }
  v1::StatusReply status(const v1::StatusRequest& /*request*/) override {
    v1::StatusReply reply;
    reply.set_pid(::getpid());
    return reply;
  }
  void onCancel(SessionId id, std::uint64_t token, std::uint64_t serial) override {
    const std::lock_guard lock(mutex_);
    cancels_.push_back({id, token, serial});
    changed_.notify_all();
  }
  void requestStop(std::chrono::milliseconds /*drain*/) override {
    const std::lock_guard lock(mutex_);
    ++stops_;
    changed_.notify_all();
  }

  /// Waits for `condition(sessions)`; false: not within 10 s.
  template <typename Condition>
  bool wait(Condition condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, seconds(10), [&] { return condition(sessions_); });
  }
  bool waitClosed(std::size_t count) {
    return wait([&](const auto& sessions) {
      std::size_t closed = 0;
      for (const auto& [id, seen] : sessions) closed += seen.closed;
      return closed == count;
    });
  }
  std::map<SessionId, Seen> sessions() {
    const std::lock_guard lock(mutex_);
    return sessions_;
  }
  std::vector<std::array<std::uint64_t, 3>> cancels() {
    const std::lock_guard lock(mutex_);
    return cancels_;
  }
  bool waitStops(int count) {
    return wait([&](const auto&) { return stops_ == count; });
  }

  std::atomic<bool> holding = false;  // requests are neither answered nor followed by readNext()

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<SessionId, Seen> sessions_;
  SessionId last_ = 0;
  int stops_ = 0;
  std::vector<std::array<std::uint64_t, 3>> cancels_;
};

ServerOptions optionsIn(const TempDir& dir) {
  ServerOptions options;
  options.socketPath = dir.file("dtorchd.sock");
  options.pidFile = dir.file("dtorchd.pid");
  options.maxMessageBytes = 8u << 20;
  return options;
}

std::shared_ptr<grpc::Channel> connectTo(const std::string& target) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
  arguments.SetMaxReceiveMessageSize(-1);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
}

struct Fixture {
  explicit Fixture(const ServerOptions* given = nullptr) {
    auto bound = Server::bind(given != nullptr ? *given : optionsIn(dir));
    REQUIRE(bound.ok());
    server = *std::move(bound);
    REQUIRE(server->serve(&listener).ok());
    server->setServing(true);
  }
  std::string target() const { return "unix:" + dir.file("dtorchd.sock"); }

  TempDir dir;
  FakeListener listener;
  std::unique_ptr<Server> server;
};

/// A session as a client sees it; every call ends within 20 s.
class Client {
 public:
  explicit Client(const std::shared_ptr<grpc::Channel>& channel) : stub_(v1::Dtorch::NewStub(channel)) {
    context_.set_deadline(std::chrono::system_clock::now() + seconds(20));
    stream_ = stub_->Session(&context_);
  }
  explicit Client(const std::string& target) : Client(connectTo(target)) {}

  bool write(std::uint64_t number) {
    v1::ClientMessage message;
    message.mutable_batch()->add_commands()->set_first_output(number);
    return stream_->Write(message);
  }
  bool read() { return stream_->Read(&last_); }
  /// The number came back.
  bool roundTrip(std::uint64_t number) { return write(number) && read() && last_.result().future() == number; }
  const v1::DaemonMessage& last() const { return last_; }
  void writesDone() { stream_->WritesDone(); }
  /// Reads to the end.
  grpc::Status finish() {
    while (read()) continue;
    return stream_->Finish();
  }

 private:
  std::unique_ptr<v1::Dtorch::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ClientMessage, v1::DaemonMessage>> stream_;
  v1::DaemonMessage last_;
};

grpc::ByteBuffer bytesOf(const std::string& text) {
  const grpc::Slice slice(text);
  return {&slice, 1};
}

/// Sends `messages` as they are over a new session, and returns how it ends.
grpc::Status sendRaw(const std::string& target, const std::vector<std::string>& messages) {
  grpc::GenericStub stub(connectTo(target));
  grpc::CompletionQueue queue;
  const auto done = [&] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + seconds(20));
  const auto call = stub.PrepareCall(&context, "/dtorch.v1.Dtorch/Session", &queue);
  call->StartCall(nullptr);
  REQUIRE(done());
  for (const std::string& message : messages) {
    call->Write(bytesOf(message), nullptr);
    if (!done()) break;
  }
  grpc::ByteBuffer answer;
  do {
    call->Read(&answer, nullptr);
  } while (done());
  grpc::Status status;
  call->Finish(&status, nullptr);
  done();
  return status;
}

std::string validMessage() {
  v1::ClientMessage message;
  message.mutable_batch()->add_commands()->set_first_output(1);
  return message.SerializeAsString();
}

FileDescriptor rawConnection(const std::string& path) {
  FileDescriptor fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  REQUIRE(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  return fd;
}

// Opens a session (when told to, if it shall wait), exchanges one message, and stays until its input ends.
TEST_CASE("role: client", "[.]") {
  std::string line;
  if (!roleVariable("DTORCH_TEST_WAIT").empty()) {
    roleSays("there");
    roleHears(&line);
  }
  Client client(roleVariable("DTORCH_TEST_TARGET"));
  roleSays(client.roundTrip(7) ? "open" : "failed");
  roleHears(&line);
}

TEST_CASE("role: serve", "[.]") {
  ServerOptions options;
  options.socketPath = roleVariable("DTORCH_TEST_DIR") + "/dtorchd.sock";
  options.pidFile = roleVariable("DTORCH_TEST_DIR") + "/dtorchd.pid";
  FakeListener listener;
  const auto server = Server::bind(options);
  if (!server.ok() || !(*server)->serve(&listener).ok()) return roleSays("failed");
  roleSays("serving");
  std::string line;
  roleHears(&line);
}

TEST_CASE("a message is answered, and the peer is known by its credentials") {
  Fixture f;
  Client client(f.target());
  CHECK(client.roundTrip(5));
  RoleProcess other("role: client", {{"DTORCH_TEST_TARGET", f.target()}});
  REQUIRE(other.readLine() == "open");

  const auto sessions = f.listener.sessions();
  REQUIRE(sessions.size() == 2);
  const PeerCredentials mine = sessions.at(1).channel->peer();
  CHECK(mine.pid == ::getpid());
  CHECK(mine.uid == ::getuid());
  CHECK(mine.gid == ::getgid());
  CHECK(sessions.at(2).channel->peer().pid == other.pid());
  other.closeInput();
  REQUIRE(other.wait() == 0);
  client.writesDone();
  CHECK(client.finish().ok());
  CHECK(f.listener.waitClosed(2));
}

TEST_CASE("each connection has its own credentials, however descriptors are used again") {
  Fixture f;
  for (int round = 0; round < 5; ++round) {
    RoleProcess other("role: client", {{"DTORCH_TEST_TARGET", f.target()}});
    REQUIRE(other.readLine() == "open");
    Client client(f.target());
    CHECK(client.roundTrip(1));
    const auto sessions = f.listener.sessions();
    CHECK(sessions.at(2 * round + 1).channel->peer().pid == other.pid());
    CHECK(sessions.at(2 * round + 2).channel->peer().pid == ::getpid());
    other.signal(SIGKILL);
    CHECK(f.listener.wait([&](const auto& s) { return s.at(2 * round + 1).closed == 1; }));
  }
}

TEST_CASE("many sessions at a time keep their messages in order") {
  constexpr int kThreads = 10;
  constexpr int kStreams = 10;
  constexpr int kMessages = 50;
  Fixture f;
  std::atomic<int> good = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      const auto channel = connectTo(f.target());
      std::vector<std::unique_ptr<Client>> clients;
      for (int i = 0; i < kStreams; ++i) clients.push_back(std::make_unique<Client>(channel));
      for (int m = 0; m < kMessages; ++m) {
        for (const auto& client : clients) client->write(m + 1);
      }
      for (const auto& client : clients) {
        for (int m = 0; m < kMessages; ++m) {
          if (client->read() && client->last().result().future() == static_cast<std::uint64_t>(m + 1)) ++good;
        }
        client->writesDone();
        client->finish();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(good == kThreads * kStreams * kMessages);
  CHECK(f.listener.waitClosed(kThreads * kStreams));
}

TEST_CASE("a message that does not parse ends its own session only, with its number") {
  Fixture f;
  Client bystander(f.target());
  CHECK(bystander.roundTrip(1));
  const std::string garbage(100, '\xff');
  const grpc::Status first = sendRaw(f.target(), {garbage});
  CHECK(first.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(absl::StrContains(first.error_message(), "message 1 "));
  CHECK(absl::StrContains(first.error_message(), "dtorch.v1.ClientMessage"));
  const grpc::Status third = sendRaw(f.target(), {validMessage(), validMessage(), garbage, validMessage()});
  CHECK(third.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(absl::StrContains(third.error_message(), "message 3 "));
  // A cut message, and lists nested deeper than Protobuf goes.
  CHECK(sendRaw(f.target(), {validMessage().substr(0, 3)}).error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  v1::ClientMessage deep;
  auto* value = deep.mutable_batch()->add_commands()->mutable_define_template()->mutable_arguments()->add_positional();
  for (int i = 0; i < 101; ++i) value = value->mutable_values()->add_values();
  CHECK(sendRaw(f.target(), {deep.SerializeAsString()}).error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(f.listener.waitClosed(4));
  CHECK(f.listener.sessions().at(3).requests == 2);
  CHECK(bystander.roundTrip(2));
}

TEST_CASE("a message beyond the limit ends its own session only") {
  Fixture f;
  Client bystander(f.target());
  const grpc::Status status = sendRaw(f.target(), {std::string((8u << 20) + 1, '\0')});
  CHECK(status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  CHECK(absl::StrContains(status.error_message(), "session.max_message = 8388608"));
  const grpc::Status farBeyond = sendRaw(f.target(), {std::string((16u << 20) + 1, '\0')});
  CHECK(farBeyond.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  CHECK(bystander.roundTrip(2));
}

TEST_CASE("a compressed message is refused: it could unfold to any size") {
  Fixture f;
  const auto stub = v1::Dtorch::NewStub(connectTo(f.target()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + seconds(20));
  context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  const auto stream = stub->Session(&context);
  v1::ClientMessage message;
  message.mutable_hello()->set_client(std::string(100'000, 'x'));
  stream->Write(message);
  v1::DaemonMessage answer;
  CHECK_FALSE(stream->Read(&answer));
  CHECK(stream->Finish().error_code() == grpc::StatusCode::UNIMPLEMENTED);
}

TEST_CASE("bytes that are no HTTP/2, and a connection that says nothing, disturb nobody") {
  Fixture f;
  const FileDescriptor silent = rawConnection(f.dir.file("dtorchd.sock"));
  const FileDescriptor noise = rawConnection(f.dir.file("dtorchd.sock"));
  const std::string text(10'000, 'x');
  CHECK(::send(noise.get(), text.data(), text.size(), MSG_NOSIGNAL) > 0);
  Client client(f.target());
  CHECK(client.roundTrip(3));
  const auto start = Clock::now();
  f.server->shutdown(seconds(5));
  CHECK(since(start) < 2000);
}

TEST_CASE("a client that is killed closes its session, once and soon") {
  Fixture f;
  for (const bool held : {false, true}) {
    f.listener.holding = false;
    RoleProcess client("role: client", {{"DTORCH_TEST_TARGET", f.target()}});
    REQUIRE(client.readLine() == "open");
    f.listener.holding = held;
    const auto start = Clock::now();
    client.signal(SIGKILL);
    CHECK(f.listener.waitClosed(held ? 2 : 1));
    CHECK(since(start) < 1000);
  }
  // What the controller does with a channel whose stream is gone has no effect.
  for (const auto& [id, seen] : f.listener.sessions()) {
    seen.channel->send(std::make_shared<v1::DaemonMessage>());
    seen.channel->readNext();
    seen.channel->close(absl::InternalError("late"));
    CHECK(seen.channel->queuedBytes() == 0);
    CHECK(seen.closed == 1);
  }
}

TEST_CASE("close() sends what is queued, then the status") {
  Fixture f;
  f.listener.holding = true;
  Client client(f.target());
  REQUIRE(client.write(1));
  REQUIRE(f.listener.wait([](const auto& s) { return s.size() == 1 && s.at(1).requests == 1; }));
  const auto channel = f.listener.sessions().at(1).channel;
  for (int i = 1; i <= 100; ++i) {
    auto message = std::make_shared<v1::DaemonMessage>();
    message->mutable_result()->set_future(i);
    channel->send(std::move(message));
  }
  channel->close(absl::ResourceExhaustedError("too many tensors"));
  channel->close(absl::InternalError("second"));
  for (std::uint64_t i = 1; i <= 100; ++i) {
    REQUIRE(client.read());
    CHECK(client.last().result().future() == i);
  }
  const grpc::Status status = client.finish();
  CHECK(status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  CHECK(status.error_message() == "too many tensors");
  CHECK(f.listener.waitClosed(1));
}

TEST_CASE("a long error text arrives cut, with its code") {
  Fixture f;
  f.listener.holding = true;
  Client client(f.target());
  REQUIRE(client.write(1));
  REQUIRE(f.listener.wait([](const auto& s) { return s.size() == 1 && s.at(1).requests == 1; }));
  std::string text;
  while (text.size() < 100'000) text += "\u5f20\u91cf";  // three bytes each, nine when encoded
  f.listener.sessions().at(1).channel->close(absl::NotFoundError(text));
  const grpc::Status status = client.finish();
  CHECK(status.error_code() == grpc::StatusCode::NOT_FOUND);
  CHECK(absl::StartsWith(status.error_message(), "\u5f20\u91cf"));
  CHECK(status.error_message().size() > 1000);
}

TEST_CASE("a client that does not read holds values back, and onDrained tells when it does") {
  constexpr int kChunks = 16;
  Fixture f;
  f.listener.holding = true;
  Client client(f.target());
  REQUIRE(client.write(1));
  REQUIRE(f.listener.wait([](const auto& s) { return s.size() == 1 && s.at(1).requests == 1; }));
  const auto channel = f.listener.sessions().at(1).channel;
  for (int i = 1; i <= kChunks; ++i) {
    auto message = std::make_shared<v1::DaemonMessage>();
    message->mutable_result()->set_future(i);
    message->mutable_result()->set_data(std::string(4u << 20, static_cast<char>(i)));
    channel->send(std::move(message));
  }
  CHECK(channel->queuedBytes() > (32u << 20));
  CHECK(f.listener.sessions().at(1).drained == 0);
  for (int i = 1; i <= kChunks; ++i) {
    REQUIRE(client.read());
    CHECK(client.last().result().future() == static_cast<std::uint64_t>(i));
    CHECK(client.last().result().data() == std::string(4u << 20, static_cast<char>(i)));
  }
  CHECK(f.listener.wait([](const auto& s) { return s.at(1).drained == 1; }));
  CHECK(channel->queuedBytes() == 0);
}

TEST_CASE("a request is not followed by another before readNext()") {
  Fixture f;
  f.listener.holding = true;
  Client client(f.target());
  for (int i = 1; i <= 3; ++i) REQUIRE(client.write(i));
  REQUIRE(f.listener.wait([](const auto& s) { return s.size() == 1 && s.at(1).requests == 1; }));
  Client other(f.target());
  REQUIRE(other.write(1));
  REQUIRE(f.listener.wait([](const auto& s) { return s.size() == 2 && s.at(2).requests == 1; }));
  CHECK(f.listener.sessions().at(1).requests == 1);
  const auto channel = f.listener.sessions().at(1).channel;
  channel->readNext();
  channel->readNext();  // without effect: a read is on its way, or its request is
  CHECK(f.listener.wait([](const auto& s) { return s.at(1).requests >= 2; }));
}

TEST_CASE("shutdown ends 50 open sessions with UNAVAILABLE at once, held requests included") {
  for (const bool held : {false, true}) {
    Fixture f;
    std::vector<std::unique_ptr<Client>> clients;
    for (int i = 0; i < 50; ++i) {
      clients.push_back(std::make_unique<Client>(f.target()));
      REQUIRE(clients.back()->roundTrip(i + 1));
    }
    f.listener.holding = held;
    for (const auto& client : clients) REQUIRE(client->write(9));
    REQUIRE(f.listener.wait([](const auto& sessions) {
      for (const auto& [id, seen] : sessions) {
        if (seen.requests != 2) return false;
      }
      return true;
    }));
    const auto start = Clock::now();
    f.server->shutdown(seconds(5));
    CHECK(since(start) < 2000);
    f.server->shutdown(seconds(5));
    for (const auto& client : clients) {
      const grpc::Status status = client->finish();
      CHECK(status.error_code() == grpc::StatusCode::UNAVAILABLE);
      CHECK(status.error_message() == "dtorchd is stopping");
    }
    for (const auto& [id, seen] : f.listener.sessions()) CHECK(seen.closed == 1);
    CHECK(::access(f.dir.file("dtorchd.sock").c_str(), F_OK) != 0);
    CHECK(::access(f.dir.file("dtorchd.pid").c_str(), F_OK) != 0);
  }
}

TEST_CASE("shutdown is bounded when clients do not take what is queued for them") {
  Fixture f;
  RoleProcess stopped("role: client", {{"DTORCH_TEST_TARGET", f.target()}});
  REQUIRE(stopped.readLine() == "open");
  stopped.signal(SIGSTOP);
  const auto channel = f.listener.sessions().at(1).channel;
  for (int i = 0; i < 8; ++i) {
    auto message = std::make_shared<v1::DaemonMessage>();
    message->mutable_result()->set_data(std::string(4u << 20, 'x'));
    channel->send(std::move(message));
  }
  const auto start = Clock::now();
  f.server->shutdown(milliseconds(500));
  CHECK(since(start) >= 500);
  CHECK(since(start) < 2500);
  CHECK(f.listener.waitClosed(1));
}

TEST_CASE("shutdown under load: sessions open, write and vanish meanwhile") {
  for (int round = 0; round < 5; ++round) {
    Fixture f;
    std::atomic<bool> over = false;
    std::atomic<int> ended = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        while (!over) {
          Client client(f.target());
          for (std::uint64_t i = 1; i <= 20 && client.roundTrip(i); ++i) continue;
          if (ended++ % 2 == 0) client.writesDone();
          if (ended % 3 == 0) client.finish();
        }
      });
    }
    REQUIRE(f.listener.wait([](const auto& s) { return s.size() >= 20; }));
    const auto start = Clock::now();
    f.server->shutdown(seconds(5));
    CHECK(since(start) < 3000);
    over = true;
    for (std::thread& thread : threads) thread.join();
    for (const auto& [id, seen] : f.listener.sessions()) CHECK(seen.closed == 1);
  }
}

TEST_CASE("100 sessions one after the other leave no descriptor behind") {
  Fixture f;
  const auto churn = [&](int count) {
    for (int i = 0; i < count; ++i) {
      Client client(f.target());
      REQUIRE(client.roundTrip(1));
      if (i % 2 == 0) client.writesDone();
      if (i % 2 == 0) CHECK(client.finish().ok());
    }
  };
  churn(5);
  REQUIRE(f.listener.waitClosed(5));
  const int before = openDescriptors();
  churn(100);
  REQUIRE(f.listener.waitClosed(105));
  // gRPC closes the last connections in its own time: a new session's own count is the bound.
  CHECK(openDescriptors() <= before + 4);
}

TEST_CASE("status and stop are answered, another protocol version is refused by name") {
  Fixture f;
  const auto stub = v1::Dtorch::NewStub(connectTo(f.target()));
  const auto deadline = std::chrono::system_clock::now() + seconds(20);
  v1::StatusRequest statusRequest;
  statusRequest.set_protocol(kProtocolVersion);
  v1::StatusReply statusReply;
  {
    grpc::ClientContext context;
    context.set_deadline(deadline);
    REQUIRE(stub->GetStatus(&context, statusRequest, &statusReply).ok());
    CHECK(statusReply.pid() == ::getpid());
  }
  v1::StopRequest stopRequest;
  v1::StopReply stopReply;
  for (const std::uint32_t version : {0u, kProtocolVersion + 1}) {
    grpc::ClientContext forStatus;
    grpc::ClientContext forStop;
    forStatus.set_deadline(deadline);
    forStop.set_deadline(deadline);
    statusRequest.set_protocol(version);
    stopRequest.set_protocol(version);
    for (const grpc::Status& status :
         {stub->GetStatus(&forStatus, statusRequest, &statusReply), stub->Stop(&forStop, stopRequest, &stopReply)}) {
      CHECK(status.error_code() == grpc::StatusCode::FAILED_PRECONDITION);
      CHECK(absl::StrContains(status.error_message(), absl::StrCat("version ", version)));
      CHECK(absl::StrContains(status.error_message(), absl::StrCat("version ", kProtocolVersion)));
    }
  }
  CHECK(f.listener.waitStops(0));
  v1::CancelRequest cancelRequest;
  v1::CancelReply cancelReply;
  cancelRequest.set_session(4);
  cancelRequest.set_token(5);
  cancelRequest.set_serial(6);
  for (const std::uint32_t version : {0u, kProtocolVersion}) {
    grpc::ClientContext forCancel;
    forCancel.set_deadline(deadline);
    cancelRequest.set_protocol(version);
    CHECK(stub->Cancel(&forCancel, cancelRequest, &cancelReply).ok() == (version == kProtocolVersion));
  }
  CHECK(f.listener.cancels() == std::vector<std::array<std::uint64_t, 3>>{{4, 5, 6}});
  grpc::ClientContext context;
  context.set_deadline(deadline);
  stopRequest.set_protocol(kProtocolVersion);
  REQUIRE(stub->Stop(&context, stopRequest, &stopReply).ok());
  CHECK(stopReply.pid() == ::getpid());
  CHECK(f.listener.waitStops(1));
}

/// Asks grpc.health.v1.Health/Check; the two messages have one field each. 1: SERVING, 2: NOT_SERVING.
int healthOf(const std::string& target) {
  grpc::GenericStub stub(connectTo(target));
  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + seconds(20));
  const auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", bytesOf(""), &queue);
  call->StartCall();
  grpc::ByteBuffer answer;
  grpc::Status status;
  call->Finish(&answer, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  grpc::Slice slice;
  if (!status.ok() || !answer.DumpToSingleSlice(&slice).ok() || slice.size() != 2 || slice.begin()[0] != 0x08)
    return -1;
  return slice.begin()[1];
}

TEST_CASE("the standard health service follows setServing()") {
  TempDir dir;
  FakeListener listener;
  const auto server = Server::bind(optionsIn(dir));
  REQUIRE(server.ok());
  REQUIRE((*server)->serve(&listener).ok());
  const std::string target = "unix:" + dir.file("dtorchd.sock");
  CHECK(healthOf(target) == 2);
  (*server)->setServing(true);
  CHECK(healthOf(target) == 1);
  (*server)->setServing(false);
  CHECK(healthOf(target) == 2);
}

TEST_CASE("TCP serves too, without credentials") {
  // A port that was free a moment ago.
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  REQUIRE(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  ::close(fd);

  const TempDir dir;
  ServerOptions options = optionsIn(dir);
  options.tcpAddress = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  Fixture f(&options);
  Client local("unix:" + options.socketPath);
  CHECK(local.roundTrip(1));
  Client remote(options.tcpAddress);
  CHECK(remote.roundTrip(1));
  const auto sessions = f.listener.sessions();
  CHECK(sessions.at(1).channel->peer().pid == ::getpid());
  CHECK(sessions.at(2).channel->peer().pid == -1);
  CHECK(sessions.at(2).channel->peer().uid == -1);

  const TempDir otherDir;
  ServerOptions second = optionsIn(otherDir);
  second.tcpAddress = options.tcpAddress;
  CHECK(Server::bind(second).status().code() == absl::StatusCode::kAlreadyExists);
  CHECK(::access(second.socketPath.c_str(), F_OK) != 0);
}

TEST_CASE("a daemon that is killed leaves its clients UNAVAILABLE, and the next one serves") {
  const TempDir dir;
  RoleProcess first("role: serve", {{"DTORCH_TEST_DIR", dir.path()}});
  REQUIRE(first.readLine() == "serving");
  Client client("unix:" + dir.file("dtorchd.sock"));
  REQUIRE(client.roundTrip(1));
  first.signal(SIGKILL);
  CHECK(client.finish().error_code() == grpc::StatusCode::UNAVAILABLE);
  REQUIRE(first.wait());
  RoleProcess second("role: serve", {{"DTORCH_TEST_DIR", dir.path()}});
  REQUIRE(second.readLine() == "serving");
  Client again("unix:" + dir.file("dtorchd.sock"));
  CHECK(again.roundTrip(1));
}

TEST_CASE("without a free descriptor connections wait, and are served when there is one") {
  Fixture f;
  Client open(f.target());
  REQUIRE(open.roundTrip(1));
  RoleProcess late("role: client", {{"DTORCH_TEST_TARGET", f.target()}, {"DTORCH_TEST_WAIT", "1"}});
  REQUIRE(late.readLine() == "there");
  rlimit old{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &old) == 0);
  const FileDescriptor lowest(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  rlimit tight = old;
  tight.rlim_cur = static_cast<rlim_t>(lowest.get()) + 1;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &tight) == 0);
  late.writeLine("go");
  CHECK_FALSE(late.readLine(milliseconds(300)));
  CHECK(open.roundTrip(2));
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &old) == 0);
  CHECK(late.readLine() == "open");
}

}  // namespace
}  // namespace dtorch
