// Tensors of more than 2 GiB: run with `ctest -R comm_large`.
#include <ATen/ATen.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>

#include "comm/future/tensor_future.h"
#include "comm/store/shared_allocator.h"
#include "comm/store/tensor_store.h"
#include "tests/catch.h"
#include "tests/comm/ranks.h"

namespace dtorch::testing {
namespace {

constexpr std::int64_t kCount = (std::int64_t{1} << 31) + 4097;

/// Zeros but for the two ends and the middle.
at::Tensor marked() {
  at::Tensor value = at::zeros({kCount}, at::kByte);
  for (const std::int64_t i : {std::int64_t{0}, kCount / 2, kCount - 1}) value[i] = 7;
  return value;
}

bool isMarked(const at::Tensor& value) {
  return value.numel() == kCount && value[0].item<int>() == 7 && value[kCount / 2].item<int>() == 7 &&
         value[kCount - 1].item<int>() == 7 && at::count_nonzero(value).item<std::int64_t>() == 3;
}

void overTwoGib(RankContext& context) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  auto store = *TensorStore::create(context.rank, sharedHeap());
  at::Tensor self = at::empty({static_cast<std::int64_t>(sizeof(TensorStore::Peer))}, at::kByte);
  std::memcpy(self.mutable_data_ptr(), &store->self(), sizeof(TensorStore::Peer));
  const at::Tensor all = *context.world().allGather(self, 0, {self.numel(), self.numel()}, {});
  std::vector<TensorStore::Peer> peers(2);
  std::memcpy(peers.data(), all.const_data_ptr(), all.nbytes());
  context.check(store->setPeers(peers).ok(), "setPeers");
  const at::Tensor value = context.rank == 0 ? marked() : at::zeros({kCount}, at::kByte);
  if (context.rank == 0) {
    context.check(store->srcSet("large", value, 1).ok(), "srcSet");
    const absl::Status read = store->srcWaitUntilGetFinished("large", deadline);
    context.check(read.ok(), read.ToString());
  } else {
    const auto view = store->destGet(0, "large", deadline);
    context.check(view.ok() && isMarked(*view), "the reader's view");
    context.check(store->destFinishGet(0, "large").ok(), "destFinishGet");
  }
  const auto copy = context.world().broadcast(value, 0, {});
  context.check(copy.ok() && isMarked(*copy), "broadcast");
}
const RankRole kOverTwoGib("over 2 GiB", overTwoGib);

}  // namespace

TEST_CASE("a tensor of more than 2 GiB") {
  for (const char* memory : {"shared", "ordinary"}) {
    for (const RankOutcome& outcome : runRanks(Mode::kProcesses, 2, "over 2 GiB", memory, std::chrono::minutes(2))) {
      INFO(memory);
      CHECK(outcome.status == 0);
      CHECK(outcome.failures == "");
    }
  }
}

TEST_CASE("a value of more than 2 GiB") {
  std::string folder = (std::filesystem::temp_directory_path() / "dtorch-large-XXXXXX").string();
  REQUIRE(::mkdtemp(folder.data()) != nullptr);
  {
    const std::shared_ptr<ValueServer> server = *ValueServer::create(folder + "/values");
    const auto client = *ValueClient::connect(folder + "/values");
    TensorPromise promise(server);
    REQUIRE(promise.set(marked()).ok());
    const auto value = TensorFuture::fetch(*client, promise.ticket().id)
                           .get(std::chrono::steady_clock::now() + std::chrono::minutes(2));
    CHECK((value.ok() && isMarked(*value)));
  }
  std::filesystem::remove_all(folder);
}

}  // namespace dtorch::testing
