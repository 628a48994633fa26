// Malformed requests, thousands of them: each is served or refused, and harms its own session alone
// (protocolbuffers/protobuf#28834, grpc/grpc-java#8256). DTORCH_FUZZ_SECONDS sets how long, with another seed each
// time; DTORCH_FUZZ_SEED sets that, too. The seed is printed.
#include <google/protobuf/message.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "client/cpp/session.h"
#include "tests/catch.h"
#include "tests/process/daemon_fixture.h"
#include "tests/process/hostile_messages.h"
#include "tests/process/raw_client.h"

namespace dtorch {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using Clock = std::chrono::steady_clock;
using Sizes = std::vector<std::int64_t>;

constexpr auto kDeadline = std::chrono::seconds(20);
constexpr std::int64_t kSecret = 42;

/// Changes messages at random. The same seed makes the same ones.
class Mutator {
 public:
  Mutator(std::uint64_t seed, std::vector<std::uint64_t> foreignIds) : random_(seed), ids_(std::move(foreignIds)) {}

  std::uint64_t below(std::uint64_t end) { return random_() % end; }

  /// Changes something somewhere in `message`.
  void change(Message* message) {
    std::vector<Message*> all;
    collect(message, &all);
    changeField(all[below(all.size())], 0);
  }
  /// Flips, drops and repeats some of the bytes.
  void changeBytes(std::string* bytes) {
    const std::string before = *bytes;
    for (std::uint64_t count = 1 + below(4); count > 0 && !bytes->empty(); --count) {
      const std::size_t at = below(bytes->size());
      switch (below(4)) {
        case 0:
          (*bytes)[at] = static_cast<char>(random_());
          break;
        case 1:
          (*bytes)[at] = static_cast<char>((*bytes)[at] ^ (1 << below(8)));
          break;
        case 2:
          bytes->erase(at, 1 + below(8));
          break;
        default:
          bytes->insert(at, before, below(before.size()), 1 + below(16));
      }
    }
  }
  std::string noise(std::size_t most) {
    std::string bytes(below(most), '\0');
    for (char& byte : bytes) byte = static_cast<char>(random_());
    return bytes;
  }

 private:
  static void collect(Message* message, std::vector<Message*>* all) {
    all->push_back(message);
    const Reflection* reflection = message->GetReflection();
    std::vector<const FieldDescriptor*> fields;
    reflection->ListFields(*message, &fields);
    for (const FieldDescriptor* field : fields) {
      if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
      if (!field->is_repeated()) {
        collect(reflection->MutableMessage(message, field), all);
        continue;
      }
      for (int i = 0; i < reflection->FieldSize(*message, field); ++i) {
        collect(reflection->MutableRepeatedMessage(message, field, i), all);
      }
    }
  }

  void changeField(Message* message, int depth) {
    const google::protobuf::Descriptor* type = message->GetDescriptor();
    const Reflection* reflection = message->GetReflection();
    if (type->field_count() == 0) return;
    const FieldDescriptor* field =
        type->field(static_cast<int>(below(static_cast<std::uint64_t>(type->field_count()))));
    const int size = field->is_repeated() ? reflection->FieldSize(*message, field) : 0;
    switch (below(6)) {
      case 0:
        reflection->ClearField(message, field);
        return;
      case 1:
        if (size > 0) reflection->RemoveLast(message, field);
        return;
      case 2:
        if (size > 1) reflection->SwapElements(message, field, 0, size - 1);
        return;
      case 3:
        if (type->full_name() == "dtorch.v1.Value") return nest(message);
        break;
      default:
        break;
    }
    // One more, or very many.
    const std::uint64_t count = field->is_repeated() && below(50) == 0 ? 300 : 1;
    for (std::uint64_t i = 0; i < count; ++i) set(message, field, depth);
  }

  // Lists in lists, up to deeper than Protobuf goes.
  void nest(Message* value) {
    const FieldDescriptor* values = value->GetDescriptor()->FindFieldByName("values");
    for (std::uint64_t depth = below(120); depth > 0; --depth) {
      Message* list = value->GetReflection()->MutableMessage(value, values);
      value = list->GetReflection()->AddMessage(list, list->GetDescriptor()->FindFieldByName("values"));
    }
  }

  void set(Message* message, const FieldDescriptor* field, int depth) {
    const Reflection* r = message->GetReflection();
    const bool add = field->is_repeated();
    const std::int64_t number = integer();
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return add ? r->AddInt32(message, field, static_cast<std::int32_t>(number))
                   : r->SetInt32(message, field, static_cast<std::int32_t>(number));
      case FieldDescriptor::CPPTYPE_INT64:
        return add ? r->AddInt64(message, field, number) : r->SetInt64(message, field, number);
      case FieldDescriptor::CPPTYPE_UINT32:
        return add ? r->AddUInt32(message, field, static_cast<std::uint32_t>(number))
                   : r->SetUInt32(message, field, static_cast<std::uint32_t>(number));
      case FieldDescriptor::CPPTYPE_UINT64: {
        const auto id = below(3) == 0 ? ids_[below(ids_.size())] : static_cast<std::uint64_t>(number);
        return add ? r->AddUInt64(message, field, id) : r->SetUInt64(message, field, id);
      }
      case FieldDescriptor::CPPTYPE_BOOL:
        return add ? r->AddBool(message, field, below(2) == 0) : r->SetBool(message, field, below(2) == 0);
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return add ? r->AddDouble(message, field, real()) : r->SetDouble(message, field, real());
      case FieldDescriptor::CPPTYPE_ENUM: {
        const int value = below(3) == 0 ? 999 : static_cast<int>(number);
        return add ? r->AddEnumValue(message, field, value) : r->SetEnumValue(message, field, value);
      }
      case FieldDescriptor::CPPTYPE_STRING:
        return add ? r->AddString(message, field, text()) : r->SetString(message, field, text());
      case FieldDescriptor::CPPTYPE_MESSAGE: {
        Message* inner = add ? r->AddMessage(message, field) : r->MutableMessage(message, field);
        if (depth > 4) return;
        for (std::uint64_t count = below(4); count > 0; --count) changeField(inner, depth + 1);
        return;
      }
      default:
        return;
    }
  }

  std::int64_t integer() {
    constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
    const std::int64_t numbers[] = {0,
                                    0,
                                    1,
                                    1,
                                    1,
                                    2,
                                    2,
                                    3,
                                    4,
                                    5,
                                    7,
                                    16,
                                    999,
                                    -1,
                                    -2,
                                    -kMost - 1,
                                    kMost,
                                    std::int64_t{1} << 31,
                                    (std::int64_t{1} << 31) - 1,
                                    std::int64_t{1} << 32,
                                    std::int64_t{1} << 40,
                                    std::int64_t{1} << 61,
                                    1 << 20};
    return below(8) == 0 ? static_cast<std::int64_t>(random_()) : numbers[below(std::size(numbers))];
  }
  double real() {
    const double numbers[] = {
        0, -0.0, 1, -1, 0.5, 1e308, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()};
    return numbers[below(std::size(numbers))];
  }
  std::string text() {
    const char* const names[] = {"aten::add.Tensor",
                                 "aten::mul.Scalar",
                                 "aten::mm",
                                 "aten::sum",
                                 "aten::zeros",
                                 "aten::ones",
                                 "aten::cat",
                                 "aten::softmax.int",
                                 "aten::index_select",
                                 "aten::nonzero",
                                 "aten::gather",
                                 "aten::view",
                                 "aten::t",
                                 "aten::transpose.int",
                                 "aten::add_.Tensor",
                                 "aten::copy_",
                                 "aten::clone",
                                 "aten::expand",
                                 "aten::split.Tensor",
                                 "aten::relu",
                                 "aten::linalg_ldl_solve",
                                 "aten::nll_loss_backward",
                                 "aten::_embedding_bag",
                                 "aten::no_such",
                                 "aten::mm.no_such",
                                 "aten::from_file",
                                 "aten::resize_",
                                 "dtorch::manual_seed",
                                 "dtorch::local_indices",
                                 "dtorch::range_push",
                                 "self",
                                 "dim",
                                 "cpu",
                                 "m k, k n -> m n; k:sum",
                                 "\xff\xfe",
                                 ""};
    if (below(6) == 0) return noise(64);
    if (below(40) == 0) return std::string(100'000, 'x');
    return names[below(std::size(names))];
  }

  std::mt19937_64 random_;
  std::vector<std::uint64_t> ids_;  // of others
};

/// wholeSession() and the commands that it lacks.
v1::ClientMessage everyCommand() {
  v1::ClientMessage message = wholeSession();
  const auto add = [&]() { return message.mutable_batch()->add_commands(); };
  v1::Explain* explain = add()->mutable_explain();
  explain->set_future(4);
  explain->set_template_id(1);
  explain->add_inputs(1);
  add()->mutable_list_rules()->set_future(5);
  v1::DeclareRule* declared = add()->mutable_declare_rule();
  declared->set_future(6);
  declared->set_operator_name("aten::mm");
  declared->set_rule("m k, k n -> m n; k:sum");
  add()->mutable_list_redistributions()->set_future(7);
  *add() = putOfFloats(10, 4, "12345678");
  v1::PutChunk* chunk = add()->mutable_put_chunk();
  chunk->set_tensor(10);
  chunk->set_offset(8);
  chunk->set_data("12345678");
  v1::Command implicit = callOf(1, 10, 11);
  implicit.set_implicit(true);
  *add() = implicit;
  v1::Command local = getOf(11, 8);
  local.mutable_get()->set_local(true);
  local.mutable_get()->set_rank(1);
  *add() = local;
  add()->mutable_cancel_get()->set_future(8);
  add()->mutable_stream_value()->set_future(8);
  return message;
}

/// One hostile stream; how it ended.
grpc::Status hostileStream(const DaemonFixture& daemon, Mutator* mutator) {
  RawClient client(daemon);
  if (mutator->below(10) == 0) {
    v1::ClientMessage hello;
    hello.mutable_hello()->set_protocol(kProtocolVersion);
    mutator->change(&hello);
    client.send(hello);
  } else {
    client.hello();
  }
  for (std::uint64_t count = 1 + mutator->below(3); count > 0; --count) {
    v1::ClientMessage message = everyCommand();
    for (std::uint64_t changes = mutator->below(6); changes > 0; --changes) mutator->change(&message);
    std::string bytes = message.SerializeAsString();
    if (mutator->below(4) == 0) mutator->changeBytes(&bytes);
    if (mutator->below(20) == 0) bytes = mutator->noise(2000);
    client.sendBytes(bytes);
  }
  client.doneSending();
  return client.end();
}

/// Bytes that are no gRPC at all, or no request that there is.
void hostileConnection(const DaemonFixture& daemon, Mutator* mutator) {
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  REQUIRE(socket >= 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, daemon.socket().c_str(), sizeof(address.sun_path) - 1);
  REQUIRE(::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  const std::string preface = mutator->below(2) == 0 ? "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" : "";
  const std::string bytes = preface + mutator->noise(4000);
  if (::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) INFO("it has closed the connection");
  ::close(socket);
}

void checkAlive(const DaemonFixture& daemon) {
  const auto session = daemon.connect();
  const std::vector<float> values = {1, 2, 3, 4};
  const Tensor x = session->put(HostView::of(values, {2, 2}), session->mesh(), {Placement::shard(1)});
  const Tensor y = session->put(HostView::of(values, {2, 2}), session->mesh(), {Placement::shard(0)});
  const auto product = session->call("aten::mm", {x, y}).get().wait(kDeadline);
  REQUIRE(product.ok());
  const auto got = *product->values<float>();
  REQUIRE(std::vector<float>(got.begin(), got.end()) == std::vector<float>{7, 10, 15, 22});
}

std::map<std::int32_t, std::int64_t> workerPids(const DaemonFixture& daemon) {
  std::map<std::int32_t, std::int64_t> pids;
  const v1::StatusReply status = daemon.status();
  CHECK(status.health() == v1::HEALTH_HEALTHY);
  for (const v1::WorkerStatus& worker : status.workers()) pids[worker.rank()] = worker.pid();
  return pids;
}

std::uint64_t setting(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST_CASE("malformed requests are served or refused, and harm nobody else") {
  constexpr std::uint64_t kSeconds = 4;
  const std::uint64_t seconds = setting("DTORCH_FUZZ_SECONDS", kSeconds);
  const std::uint64_t seed = setting("DTORCH_FUZZ_SEED", seconds == kSeconds ? 20261 : std::random_device()());
  const auto ends = Clock::now() + std::chrono::seconds(seconds);
  // What a hostile client may take is bounded, so that it need not be had.
  DaemonFixture daemon({.workers = 2, .flags = {"--workers.memory", "256MiB", "--session.max_bytes", "256MiB"}});
  const auto bystander = daemon.connect();
  const std::vector<std::int64_t> secret = {kSecret};
  const Tensor held = bystander->put(HostView::of(secret, {1}), bystander->mesh());
  REQUIRE(bystander->synchronize().wait(kDeadline).ok());
  const std::vector<std::uint64_t> foreign = {1, 2, (bystander->id() << kSessionShift) + 1,
                                              (bystander->id() << kSessionShift) + 2};
  const auto pids = workerPids(daemon);

  std::uint64_t rounds = 0;
  std::map<int, std::uint64_t> endings;
  for (; Clock::now() < ends; ++rounds) {
    Mutator mutator(seed * 1'000'003 + rounds, foreign);
    if (mutator.below(20) == 0) hostileConnection(daemon, &mutator);
    const grpc::Status end = hostileStream(daemon, &mutator);
    INFO("seed " << seed << ", round " << rounds << ": " << end.error_code() << " " << end.error_message());
    const bool refusal = end.error_code() == grpc::StatusCode::INVALID_ARGUMENT ||
                         end.error_code() == grpc::StatusCode::FAILED_PRECONDITION ||
                         end.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED;
    REQUIRE((end.ok() || refusal));
    ++endings[end.error_code()];
    if (rounds % 50 == 0) checkAlive(daemon);
  }
  std::cout << "fuzz: seed " << seed << ", " << rounds << " streams, of which " << endings[grpc::StatusCode::OK]
            << " were served and " << endings[grpc::StatusCode::INVALID_ARGUMENT] << " refused as invalid\n";
  checkAlive(daemon);
  CHECK(*held.get().wait(kDeadline)->item() == kSecret);
  CHECK(workerPids(daemon) == pids);  // none has ended
  CHECK(endings[grpc::StatusCode::OK] > rounds / 20);
  CHECK(endings[grpc::StatusCode::INVALID_ARGUMENT] > rounds / 20);
}

}  // namespace
}  // namespace dtorch
