#include "daemon/graph/logical_graph.h"

#include "tests/catch.h"

namespace dtorch {
namespace {

GraphOperator op(OperatorNumber number, GroupId group) {
  GraphOperator made;
  made.number = number;
  made.group = group;
  made.inputs = {number * 10};
  return made;
}

TEST_CASE("operators leave the graph with those before them, each group by itself") {
  LogicalGraph graph;
  graph.add(op(1, 1), "aten::add.Tensor");
  graph.add(op(2, 2), "aten::mm");
  graph.add(op(3, 1), "aten::mm");
  graph.add(op(4, 2), "aten::add.Tensor");
  CHECK(graph.size() == 4);
  graph.retire(1, 3);
  CHECK(graph.size() == 3);
  const std::vector<const GraphOperator*> all = graph.oldest(8);
  REQUIRE(all.size() == 3);
  CHECK(all[0]->number == 2);
  CHECK(all[0]->name == "aten::mm");
  CHECK(all[1]->number == 3);
  CHECK(all[1]->inputs[0] == 30);
  CHECK(all[2]->number == 4);
  CHECK(graph.oldest(1).size() == 1);
  CHECK(graph.find(3)->name == "aten::mm");
  CHECK(graph.find(1) == nullptr);
  CHECK(graph.find(5) == nullptr);
  graph.retire(7, 100);
  graph.retireAll([](GroupId group) { return group == 1 ? OperatorNumber{100} : OperatorNumber{3}; });
  CHECK(graph.size() == 1);
  graph.retire(2, 100);
  CHECK(graph.size() == 0);
}

TEST_CASE("what a session has in flight comes in order, over all groups") {
  LogicalGraph graph;
  for (OperatorNumber number = 1; number <= 6; ++number) {
    GraphOperator made = op(number, 1 + number % 2);
    made.session = number == 4 ? 8 : 9;
    graph.add(std::move(made), "aten::mm");
  }
  std::vector<OperatorNumber> numbers;
  for (const GraphOperator* each : graph.ofSession(9, 2)) numbers.push_back(each->number);
  CHECK(numbers == std::vector<OperatorNumber>{2, 3, 5, 6});
}

}  // namespace
}  // namespace dtorch
