#include "daemon/session/future_table.h"

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "core/tensor_meta.h"
#include "proto/codec.h"
#include "proto/segment_codec.h"
#include "tests/daemon/fake_workers.h"

namespace dtorch::testing {
namespace {

constexpr SessionId kSession = 4;
constexpr FutureId kFuture = 9;

/// A client that reads when it is told to.
class FakeChannel : public SessionChannel {
 public:
  void send(std::shared_ptr<const v1::DaemonMessage> message) override {
    queued_ += message->ByteSizeLong();
    sent.push_back(message->result());
  }
  std::size_t queuedBytes() const override { return queued_; }
  void readNext() override {}
  void close(const absl::Status&) override {}
  PeerCredentials peer() const override { return {}; }
  void read() { queued_ = 0; }

  std::vector<v1::FutureResult> sent;

 private:
  std::size_t queued_ = 0;
};

/// A table whose worker is rank 0.
class Table {
 public:
  Table() {
    workers.greet(0);
    workers.untilEvent("connected 0");
    group = workers.group({0});
  }
  FutureId await(std::uint64_t bytes, bool byTicket = false) {
    return futures.await(kSession, channel, kFuture, group, 31, bytes, byTicket);
  }
  /// What rank 0 says of `fetch`: a value of so many bytes, in a segment when there is one.
  v1::FetchedValue value(FutureId fetch, std::int64_t bytes, const Segment* segment = nullptr) {
    v1::FetchedValue value;
    value.set_future(fetch);
    toWire(*makeMeta(DType::kUInt8, {bytes}), value.mutable_meta());
    if (segment == nullptr) {
      value.set_inline_bytes(std::string(static_cast<std::size_t>(bytes), 'v'));
    } else {
      toWire(segment->ref(), value.mutable_segment());
    }
    return value;
  }
  /// Whether the worker has been told that `fetch` was taken.
  bool isReleased(FutureId fetch) {
    for (;;) {
      const auto [topic, frame] = workers.next(0);
      if (topic.empty()) return false;
      if (frame.commands(0).value_taken().future() == fetch) return true;
    }
  }

  FakeWorkers workers{1};
  FutureTable futures{workers.executor.get()};
  std::shared_ptr<FakeChannel> channel = std::make_shared<FakeChannel>();
  GroupId group = 0;
};

TEST_CASE("a future is resolved once") {
  Table table;
  const FutureId fetch = table.await(3);
  CHECK(table.futures.awaits(kSession, kFuture));
  CHECK(table.futures.fetched(fetch).operand == 31);
  CHECK(table.futures.openBytes(kSession) == 3);
  table.futures.resolve(0, table.value(fetch, 3), nullptr);
  REQUIRE(table.channel->sent.size() == 1);
  CHECK(table.channel->sent[0].future() == kFuture);
  CHECK(table.channel->sent[0].data() == "vvv");
  CHECK(table.channel->sent[0].done());
  CHECK_FALSE(table.futures.awaits(kSession, kFuture));
  CHECK(table.futures.openBytes(kSession) == 0);
  table.futures.resolve(0, table.value(fetch, 3), nullptr);
  CHECK(table.channel->sent.size() == 1);
}

TEST_CASE("the first cause goes before a value, and is then observed") {
  Table table;
  const Segment segment = *Segment::create("test", 16);
  const FutureId fetch = table.await(16);
  const auto failure = std::make_shared<OperandFailure>(
      OperandFailure{absl::InvalidArgumentError("no such dimension"), "aten::mm", 1, "train.py:3"});
  table.futures.resolve(0, table.value(fetch, 16, &segment), failure);
  REQUIRE(table.channel->sent.size() == 1);
  CHECK(table.channel->sent[0].error().message().find("no such dimension") != std::string::npos);
  CHECK(table.channel->sent[0].error().operator_name() == "aten::mm");
  CHECK(failure->observed);
  CHECK(table.isReleased(fetch));
}

TEST_CASE("a future whose group breaks is failed, with the reason") {
  Table table;
  const FutureId fetch = table.await(3);
  table.futures.failBrokenGroups(0, absl::AbortedError("killed"));
  CHECK(table.channel->sent.empty());
  table.workers.executor->failRank(0, absl::UnavailableError("killed"));
  table.futures.failBrokenGroups(0, absl::AbortedError("killed"));
  REQUIRE(table.channel->sent.size() == 1);
  CHECK(table.channel->sent[0].error().message().find("killed") != std::string::npos);
  CHECK(table.futures.pendingOf(kSession) == 0);
  table.futures.resolve(0, table.value(fetch, 3), nullptr);
  CHECK(table.channel->sent.size() == 1);
}

TEST_CASE("a cancelled future gets nothing, and its value is released") {
  Table table;
  const Segment segment = *Segment::create("test", 16);
  const FutureId fetch = table.await(16);
  table.futures.cancel(kSession, kFuture);
  CHECK(table.futures.openBytes(kSession) == 0);
  table.futures.resolve(0, table.value(fetch, 16, &segment), nullptr);
  CHECK(table.channel->sent.empty());
  CHECK(table.isReleased(fetch));
}

TEST_CASE("a large value is sent on as fast as the client reads, then released") {
  constexpr std::size_t kBytes = 30u << 20;
  Table table;
  Segment segment = *Segment::create("test", kBytes);
  segment.data()[kBytes - 1] = std::byte{7};
  const FutureId fetch = table.await(kBytes);
  table.futures.resolve(0, table.value(fetch, kBytes, &segment), nullptr);
  const std::size_t first = table.channel->sent.size();
  CHECK(table.channel->queuedBytes() < (10u << 20));
  CHECK(table.futures.pendingOf(kSession) == 1);
  CHECK_FALSE(table.isReleased(fetch));
  table.futures.continueTransfers(kSession);
  CHECK(table.channel->sent.size() == first);  // it has not read
  for (int read = 0; read < 10 && !table.channel->sent.back().done(); ++read) {
    table.channel->read();
    table.futures.continueTransfers(kSession);
  }
  std::uint64_t offset = 0;
  for (const v1::FutureResult& part : table.channel->sent) {
    CHECK(part.offset() == offset);
    CHECK(part.has_meta() == (offset == 0));
    offset += part.data().size();
  }
  CHECK(offset == kBytes);
  CHECK(table.channel->sent.back().data().back() == 7);
  CHECK(table.isReleased(fetch));
  CHECK(table.futures.openBytes(kSession) == 0);
}

TEST_CASE("a large value is lent by ticket, until the client is done with it or cannot reach it") {
  Table table;
  const Segment segment = *Segment::create("test", 64);
  for (const bool reaches : {true, false}) {
    const FutureId fetch = table.await(64, true);
    v1::FetchedValue value = table.value(fetch, 64, &segment);
    value.mutable_ticket()->set_path("/socket");
    value.mutable_ticket()->set_id(3);
    table.channel->sent.clear();
    table.futures.resolve(0, value, nullptr);
    REQUIRE(table.channel->sent.size() == 1);
    CHECK(table.channel->sent[0].ticket().id() == 3);
    CHECK(table.channel->sent[0].data().empty());
    CHECK(table.futures.awaits(kSession, kFuture));
    CHECK_FALSE(table.isReleased(fetch));
    if (reaches) {
      table.futures.cancel(kSession, kFuture);
    } else {
      table.futures.stream(kSession, kFuture);
      REQUIRE(table.channel->sent.size() == 2);
      CHECK(table.channel->sent[1].data().size() == 64);
    }
    CHECK(table.isReleased(fetch));
    CHECK_FALSE(table.futures.awaits(kSession, kFuture));
  }
}

TEST_CASE("a session that goes lets go of all that it waits for") {
  Table table;
  const Segment segment = *Segment::create("test", 64);
  const FutureId lent = table.await(64, true);
  v1::FetchedValue value = table.value(lent, 64, &segment);
  value.mutable_ticket()->set_id(3);
  table.futures.resolve(0, value, nullptr);
  const FutureId waiting = table.futures.await(kSession, table.channel, kFuture + 1, table.group, 32, 8, false);
  table.futures.dropSession(kSession);
  CHECK(table.isReleased(lent));
  CHECK(table.futures.fetched(waiting).operand == 0);
  CHECK(table.futures.openBytes(kSession) == 0);
  table.futures.continueTransfers(kSession);
  CHECK(table.channel->sent.size() == 1);
}

}  // namespace
}  // namespace dtorch::testing
