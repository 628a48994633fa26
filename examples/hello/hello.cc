#include <cstdio>
#include <vector>

#include "client/cpp/operators.h"
#include "client/cpp/session.h"

using namespace dtorch;

int main(int argc, char** argv) {
  // Without an address: $DTORCH_SOCKET, or the daemon of this user.
  auto session = Session::connect({.address = argc > 1 ? argv[1] : ""});
  if (!session.ok()) {
    std::fprintf(stderr, "%s\n", session.status().ToString().c_str());
    return 1;
  }
  const Mesh& mesh = (*session)->mesh();  // all workers, in one dimension

  // Five rows, divided over the workers; a weight that each of them holds.
  const std::vector<float> rows = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const std::vector<float> weight = {1, 0, 0, 1};
  Tensor x = (*session)->put(HostView::of(rows, {5, 2}), mesh, {Placement::shard(0)});
  Tensor w = (*session)->put(HostView::of(weight, {2, 2}), mesh, {Placement::replicate()});

  // Nothing here waits: the operators are on their way to the workers.
  Tensor y = mm(x, w);                                                              // Shard(0)
  Tensor total = call("aten::sum.dim_IntList", {y, std::vector<std::int64_t>{0}});  // Partial(sum)

  // Only a value blocks. It is gathered, here by an all_reduce; or it is the first error that it depends on.
  auto value = total.get().wait(std::chrono::seconds(10));
  if (!value.ok()) {
    std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
    return 1;
  }
  auto sums = value->values<float>();
  std::printf("%g %g\n", (*sums)[0], (*sums)[1]);
  return 0;
}
