#include "daemon/executor/executor.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/daemon/fake_workers.h"

namespace dtorch::testing {
namespace {

using Events = std::vector<std::string>;

TEST_CASE("a worker is connected once its hello and its subscription have both arrived") {
  FakeWorkers workers(2);
  v1::ReportItem hello;
  hello.mutable_hello()->set_protocol(kProtocolVersion);
  workers.report(0, hello);
  workers.subscribe(1, workerTopic(1, 0));
  workers.report(1, hello);
  workers.untilEvent("connected 1");
  CHECK(workers.listener.events == Events{"connected 1"});
  workers.subscribe(0, workerTopic(0, 0));
  workers.untilEvent("connected 0");
}

TEST_CASE("a worker of another protocol is a fault, not connected") {
  FakeWorkers workers(1);
  v1::ReportItem hello;
  hello.mutable_hello()->set_protocol(kProtocolVersion + 1);
  workers.subscribe(0, workerTopic(0, 0));
  workers.report(0, std::move(hello));
  workers.untilEvent("fault FAILED_PRECONDITION 0");
  CHECK(workers.listener.events.size() == 1);
}

TEST_CASE("a group can be used once every rank hears it") {
  FakeWorkers workers(3);
  for (const Rank rank : {0, 1, 2}) workers.greet(rank);
  workers.untilEvent("connected 2");
  const GroupId group = *workers.executor->groupOf({0, 2});
  CHECK(*workers.executor->groupOf({0, 2}) == group);
  CHECK(workers.nextOn(0, workerTopic(0, 0)).join_group().group() == group);
  CHECK(workers.nextOn(2, workerTopic(2, 0)).join_group().group() == group);
  CHECK(workers.next(1).first.empty());
  workers.join(0, group);
  // Hearing the group's topic is not enough: equal subscriptions are reported once.
  workers.subscribe(2, groupTopic(group));
  workers.subscribe(1, groupMarkerTopic(group, 1));  // not of this group
  workers.report(1, {});
  workers.executor->handleSubscriptions();
  CHECK_FALSE(workers.executor->usable(group));
  workers.subscribe(2, groupMarkerTopic(group, 2));
  workers.untilEvent(absl::StrCat("usable ", group));
  CHECK(workers.executor->usable(group));
}

TEST_CASE("WIRE-2: operators have one order over all groups, and frames are numbered in each") {
  FakeWorkers workers(2);
  const GroupId both = workers.group({0, 1});
  const GroupId one = workers.group({1});
  std::vector<OperatorNumber> numbers(4);
  workers.executor->appendOperator(both, 7, &numbers[0]);
  workers.executor->appendOperator(one, 8, &numbers[1]);
  workers.executor->appendOperator(both, 9, &numbers[2]);
  workers.executor->appendOperator(both, 10, &numbers[3]);
  workers.executor->flush();
  CHECK(numbers == std::vector<OperatorNumber>{1, 2, 3, 4});
  const auto first = workers.next(1);
  const auto second = workers.next(1);
  const auto third = workers.next(1);
  CHECK(first.first == groupTopic(both));
  CHECK(first.second.sequence() == 1);
  CHECK(first.second.first_operator() == 1);
  CHECK(second.first == groupTopic(one));
  CHECK(second.second.sequence() == 1);
  CHECK(second.second.first_operator() == 2);
  CHECK(third.first == groupTopic(both));
  CHECK(third.second.sequence() == 2);
  CHECK(third.second.first_operator() == 3);
  CHECK(third.second.commands_size() == 2);
  CHECK(workers.executor->oldestInFlight(both) == 1);
  CHECK(workers.executor->oldestInFlight(one) == 2);
}

TEST_CASE("credit bounds what is in flight, and comes back when every rank is done") {
  FakeWorkers workers(2, 3);
  const GroupId group = workers.group({0, 1});
  OperatorNumber number = 0;
  for (int i = 0; i < 3; ++i) {
    CHECK(workers.executor->usable(group));
    workers.executor->appendOperator(group, 7, &number);
  }
  CHECK_FALSE(workers.executor->usable(group));
  workers.executor->flush();
  workers.listener.events.clear();
  workers.frameDone(0, group, 1);
  v1::ReportItem failed;
  failed.mutable_failed();
  workers.report(0, std::move(failed));  // comes after it
  workers.untilEvent("failed 0");
  CHECK_FALSE(workers.executor->usable(group));
  CHECK(workers.listener.operatorsDone == 0);
  workers.frameDone(1, group, 1);
  workers.untilEvent(absl::StrCat("usable ", group));
  CHECK(workers.listener.operatorsDone == 3);
  CHECK(workers.executor->oldestInFlight(group) == number + 1);
}

TEST_CASE("memory of a command is kept until every rank is done with it") {
  FakeWorkers workers(2);
  const GroupId group = workers.group({0, 1});
  auto memory = std::make_shared<int>(5);
  const std::weak_ptr<int> kept = memory;
  workers.executor->appendCommand(group, 1024, std::move(memory));
  workers.executor->flush();
  workers.frameDone(0, group, 1);
  v1::ReportItem failed;
  failed.mutable_failed();
  workers.report(0, std::move(failed));
  workers.untilEvent("failed 0");
  CHECK_FALSE(kept.expired());
  workers.frameDone(1, group, 1);
  workers.until([&] { return kept.expired(); });
}

TEST_CASE("a frame that a rank does not have, or has reported, is a fault of that rank") {
  FakeWorkers workers(2);
  const GroupId group = workers.group({0, 1});
  OperatorNumber number = 0;
  workers.executor->appendOperator(group, 7, &number);
  workers.executor->flush();
  workers.frameDone(0, group, 2);
  workers.untilEvent("fault DATA_LOSS 0");
  workers.frameDone(1, group, 1);
  workers.frameDone(1, group, 1);
  workers.untilEvent("fault DATA_LOSS 1");
}

TEST_CASE("a report that does not parse is a fault of the worker that it names") {
  FakeWorkers workers(2);
  v1::Report report;
  report.set_rank(1);
  report.add_items()->mutable_value()->set_inline_bytes(std::string(100, 'x'));
  workers.send(1, report.SerializeAsString().substr(0, 40));
  workers.untilEvent("fault DATA_LOSS 1");
  workers.send(0, "\xff\xff\xff");  // names nobody
  workers.greet(0);
  workers.untilEvent("connected 0");
  CHECK(workers.listener.events == Events{"fault DATA_LOSS 1", "connected 0"});
}

TEST_CASE("a fence is reached when every rank of its group has reached it") {
  FakeWorkers workers(2);
  const GroupId group = workers.group({0, 1});
  workers.executor->appendFence(group, 77);
  workers.executor->flush();
  CHECK(workers.nextOn(0, groupTopic(group)).fence().fence() == 77);
  v1::ReportItem reached;
  reached.mutable_fence()->set_fence(77);
  workers.report(0, reached);
  workers.frameDone(0, group, 1);
  v1::ReportItem failed;
  failed.mutable_failed();
  workers.report(0, std::move(failed));
  workers.listener.events.clear();
  workers.untilEvent("failed 0");
  CHECK(workers.listener.events == Events{"failed 0"});
  workers.report(1, reached);
  workers.untilEvent("fence 77");
}

TEST_CASE("a lost rank fails its groups, with the reason, and no others") {
  FakeWorkers workers(3);
  const GroupId lost = workers.group({0, 1});
  const GroupId other = workers.group({0, 2});
  OperatorNumber number = 0;
  auto memory = std::make_shared<int>(5);
  const std::weak_ptr<int> kept = memory;
  workers.executor->appendCommand(lost, 1, std::move(memory));
  workers.executor->appendFence(lost, 5);
  workers.executor->appendOperator(other, 7, &number);
  workers.executor->failRank(1, absl::UnavailableError("killed"));
  CHECK(workers.executor->error(lost) == absl::UnavailableError("killed"));
  CHECK(workers.executor->error(other).ok());
  CHECK(kept.expired());  // what was in flight is given up
  CHECK(workers.executor->error(*workers.executor->groupOf({1, 2})) == absl::UnavailableError("killed"));
  // What is appended to a broken group is not published.
  while (!workers.next(0).first.empty()) continue;
  workers.executor->appendOperator(lost, 7, &number);
  workers.executor->appendOperator(other, 7, &number);
  workers.executor->flush();
  const auto heard = workers.next(0);
  CHECK(heard.first == groupTopic(other));
  CHECK(heard.second.sequence() == 2);
  CHECK(heard.second.first_operator() == number);
  // Those that are left drop their parts.
  workers.subscribe(0, workerTopic(0, 0));
  workers.executor->handleSubscriptions();
  workers.executor->discard(lost, {31});
  CHECK(workers.nextOn(0, workerTopic(0, 0)).discard().operands(0) == 31);
}

TEST_CASE("what is postponed, and all behind it, comes later and once") {
  FakeWorkers workers(2);
  const auto failed = [](OperatorNumber number) {
    v1::ReportItem item;
    item.mutable_failed()->set_operator_number(number);
    return item;
  };
  v1::Report report;
  report.set_rank(1);
  report.add_items()->mutable_outputs();
  *report.add_items() = failed(1);
  *report.add_items() = failed(2);
  workers.listener.postponesAll = true;
  workers.send(1, report.SerializeAsString());
  workers.until([&] { return workers.executor->postponed(); });
  workers.report(0, failed(3));
  workers.executor->handleReports();
  CHECK(workers.listener.events.empty());
  workers.listener.postponesAll = false;
  workers.untilEvent("failed 0");
  CHECK(workers.listener.events == Events{"failed 1", "failed 1", "failed 0"});
  CHECK_FALSE(workers.executor->postponed());
}

TEST_CASE("a worker in another one's place has a topic of its own, and the old one's reports count no more") {
  FakeWorkers workers(2);
  for (const Rank rank : {0, 1}) workers.greet(rank);
  workers.untilEvent("connected 1");
  const GroupId both = workers.group({0, 1});
  const GroupId one = workers.group({0});
  workers.executor->failRank(1, absl::AbortedError("lost"));
  CHECK_FALSE(workers.executor->error(both).ok());
  CHECK(workers.executor->error(one).ok());
  CHECK(workers.executor->reform(both) == both);  // not yet
  v1::Report hello;
  hello.set_rank(1);
  hello.set_incarnation(7);
  hello.add_items()->mutable_hello()->set_protocol(kProtocolVersion);
  workers.listener.events.clear();
  workers.send(1, hello.SerializeAsString());
  workers.subscribe(1, workerTopic(1, 7));
  workers.untilEvent("connected 1");
  CHECK_FALSE(workers.executor->workerEnded(1, 0));
  CHECK(workers.executor->incarnation(1) == 7);
  workers.executor->restoreRank(1);
  const GroupId again = workers.executor->reform(both);
  CHECK(again != both);
  CHECK(workers.executor->reform(both) == again);
  CHECK(workers.executor->reform(one) == one);
  CHECK(*workers.executor->groupOf({0, 1}) == again);
  const v1::WorkerCommand join = workers.nextOn(1, workerTopic(1, 7));
  CHECK(join.join_group().group() == again);
  CHECK(join.join_group().instead_of() == both);
  CHECK_FALSE(workers.executor->joined(again));
  for (const Rank rank : {0, 1}) workers.join(rank, again);
  workers.until([&] { return workers.executor->usable(again); });
  // A late word of the worker before.
  workers.listener.events.clear();
  v1::ReportItem fault;
  fault.mutable_fault();
  workers.report(1, std::move(fault));
  workers.frameDone(0, again, 99);
  workers.untilEvent("fault DATA_LOSS 0");
  CHECK(workers.listener.events.size() == 1);
  // Nor does what it has said when its end is known.
  CHECK(workers.executor->workerEnded(1, 7));
  workers.listener.events.clear();
  workers.send(1, hello.SerializeAsString());
  workers.frameDone(0, again, 99);
  workers.untilEvent("fault DATA_LOSS 0");
  CHECK(workers.listener.events.size() == 1);
}

}  // namespace
}  // namespace dtorch::testing
