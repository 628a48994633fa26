// What heartbeats say, and what their answers do.
#include <ATen/ATen.h>
#include <grpcpp/grpcpp.h>
#include <stdlib.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "dtorch/v1/worker.grpc.pb.h"
#include "proto/version.h"
#include "tests/catch.h"
#include "tests/worker/running_workers.h"

namespace dtorch {
namespace {

class FakeSupervisor : public v1::Supervisor::Service {
 public:
  FakeSupervisor() {
    std::string folder = (std::filesystem::temp_directory_path() / "dtorch-beat-XXXXXX").string();
    REQUIRE(mkdtemp(folder.data()) != nullptr);
    folder_ = folder;
    grpc::ServerBuilder builder;
    builder.AddListeningPort(target(), grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    REQUIRE(server_ != nullptr);
  }
  ~FakeSupervisor() override {
    server_->Shutdown();
    std::filesystem::remove_all(folder_);
  }

  std::string target() const { return "unix:" + (folder_ / "socket").string(); }
  void answerStop() {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  // The first heartbeat from now on that `wanted` accepts.
  v1::Heartbeat await(const std::function<bool(const v1::Heartbeat&)>& wanted) {
    std::unique_lock lock(mutex_);
    const auto come = [&] { return wanted(last_); };
    if (!beat_.wait_for(lock, std::chrono::seconds(30), come)) FAIL("no such heartbeat");
    return last_;
  }

 private:
  grpc::Status Beat(grpc::ServerContext*, const v1::Heartbeat* heartbeat, v1::HeartbeatReply* reply) override {
    const std::lock_guard lock(mutex_);
    last_ = *heartbeat;
    beat_.notify_all();
    reply->set_stop(stop_);
    return grpc::Status::OK;
  }

  std::filesystem::path folder_;
  std::unique_ptr<grpc::Server> server_;
  std::mutex mutex_;
  std::condition_variable beat_;
  v1::Heartbeat last_;
  bool stop_ = false;
};

const Placement kR = Placement::replicate();

}  // namespace

TEST_CASE("heartbeats tell what was done, what is held and what runs") {
  FakeSupervisor supervisor;
  RunningWorkers workers(1, WorkerDriver::Transport::kInproc, supervisor.target());
  const OperatorNumber first = workers.send({workers.put(1, at::ones({8, 8}), {kR}), define(addPlan(1, workers.mesh())),
                                             run(1, {1, 1}, 2), run(1, {1, 2}, 3)});
  const v1::Heartbeat done =
      supervisor.await([](const v1::Heartbeat& beat) { return beat.done() == 2 && beat.tensor_bytes() == 3 * 256; });
  CHECK(done.protocol() == kProtocolVersion);
  CHECK(done.pid() == getpid());
  CHECK(done.last_done() == first + 1);
  CHECK(done.resident_bytes() > (1 << 20));
  CHECK(done.queued() == 0);
  CHECK(done.current() == 0);
  CHECK(done.allocated_bytes() == 0);  // not counted: this process has no allocator of ours

  // Long enough to be seen at work, whatever the machine: a chain of large products, ended by the worker's stop.
  v1::Plan product = makePlan(2, workers.mesh(), 1, "aten::mm");
  addKernel(product, "aten::mm", {TensorArg{0}, TensorArg{0}});
  product.add_outputs(1);
  std::vector<v1::WorkerCommand> commands{workers.put(10, at::eye(1500), {kR}), define(product)};
  for (OperandId id = 10; id < 60; ++id) commands.push_back(run(2, {id}, id + 1));
  workers.send(commands);
  const v1::Heartbeat busy = supervisor.await([](const v1::Heartbeat& beat) { return beat.current() != 0; });
  CHECK(busy.current_name() == "aten::mm");
  CHECK(busy.queued() > 0);
}

TEST_CASE("a worker that the daemon does not know ends") {
  FakeSupervisor supervisor;
  RunningWorkers workers(1, WorkerDriver::Transport::kInproc, supervisor.target());
  supervisor.answerStop();
  CHECK(workers.worker(0).wait().code() == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("heartbeats that reach nobody do not end a worker") {
  RunningWorkers workers(1, WorkerDriver::Transport::kInproc, "unix:/nonexistent/dtorch.sock");
  workers.send({workers.put(1, at::ones({2}), {kR})});
  CHECK(at::equal(workers.fetch(0, 1), at::ones({2})));
}

}  // namespace dtorch
