#include "worker/operand_table.h"

#include <ATen/ops/ones.h>

#include "tests/catch.h"

namespace dtorch {

TEST_CASE("a discarded operand lives on in the tasks that hold it") {
  OperandTable table;
  OperandRef held = table.add(7, StreamKind::kCompute, 3);
  REQUIRE(table.find(7) != nullptr);
  CHECK(table.find(7)->get() == held.get());
  CHECK(held->ticket == 3);
  table.discard(7);
  CHECK(table.find(7) == nullptr);
  held->set(at::ones({2, 3}));
  CHECK(held->value.numel() == 6);
  CHECK(held.use_count() == 1);
}

TEST_CASE("the table counts the bytes of its tensors, and failures hold none") {
  OperandTable table;
  table.add(1, StreamKind::kCompute, 1)->set(at::ones({2, 3}));
  table.add(2, StreamKind::kCompute, 2)->set(at::ones({5}, at::kDouble));
  CHECK(table.bytes() == 24 + 40);
  (*table.find(2))->fail(std::make_shared<const Failure>("a kernel", absl::InternalError("broken"), 0));
  CHECK(table.bytes() == 24);
  CHECK_FALSE((*table.find(2))->value.defined());
  table.discard(1);
  table.discard(99);
  CHECK(table.size() == 1);
  CHECK(table.bytes() == 0);
}

TEST_CASE("an operand that takes the place of another one is a new one") {
  OperandTable table;
  const OperandRef before = table.add(1, StreamKind::kCompute, 1);
  before->set(at::ones({1}));
  const OperandRef after = table.add(1, StreamKind::kCommunication, 1);
  CHECK(before.get() != after.get());
  CHECK(before->value.defined());
  CHECK_FALSE(after->value.defined());
}

}  // namespace dtorch
