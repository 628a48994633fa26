#include "client/ctl/daemon_client.h"

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/cpp/address.h"
#include "proto/version.h"

namespace dtorch {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kRetryInterval(50);
/// For one question, where the caller's deadline is further off.
constexpr std::chrono::seconds kAnswerTimeout(1);

std::chrono::system_clock::time_point forGrpc(steady_clock::time_point deadline) {
  return std::chrono::system_clock::now() +
         std::chrono::duration_cast<std::chrono::system_clock::duration>(deadline - steady_clock::now());
}

/// A process that can be waited for although it is nobody's child.
class ProcessHandle {
 public:
  explicit ProcessHandle(std::int64_t pid)
      : fd_(static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0))) {}
  ProcessHandle(const ProcessHandle&) = delete;
  ProcessHandle& operator=(const ProcessHandle&) = delete;
  ~ProcessHandle() {
    if (fd_ >= 0) ::close(fd_);
  }
  bool open() const { return fd_ >= 0; }
  /// false: it has not ended by then.
  bool waitForEnd(steady_clock::time_point deadline) const {
    for (;;) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - steady_clock::now());
      pollfd request{fd_, POLLIN, 0};
      const int ready = ::poll(&request, 1, static_cast<int>(std::max<std::int64_t>(0, left.count())));
      if (ready > 0) return true;
      if (ready == 0 || errno != EINTR) return false;
    }
  }

 private:
  const int fd_;
};

}  // namespace

DaemonClient::DaemonClient(std::string address)
    : address_(grpcAddress(address)), channel_(makeChannel(address_)), stub_(v1::Dtorch::NewStub(channel_)) {}

absl::Status DaemonClient::error(const grpc::Status& status) const {
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
      return absl::Status(code, absl::StrCat("no dtorchd answers at ", address_, " (", status.error_message(), ")"));
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return absl::Status(code, absl::StrCat("dtorchd at ", address_, " did not answer in time"));
    default:
      return absl::Status(code, absl::StrCat("dtorchd at ", address_, " refused: ", status.error_message()));
  }
}

absl::StatusOr<v1::StatusReply> DaemonClient::status(TimePoint deadline) { return ask({}, deadline); }

absl::StatusOr<v1::StatusReply> DaemonClient::statusWithStacks(TimePoint deadline) {
  v1::StatusRequest request;
  request.set_stacks(true);
  request.set_ask_stacks(true);
  const auto begin = steady_clock::now();
  for (;;) {
    absl::StatusOr<v1::StatusReply> reply = ask(request, std::min(deadline, steady_clock::now() + kAnswerTimeout));
    if (!reply.ok()) return reply;
    request.set_ask_stacks(false);
    const auto age = std::chrono::duration_cast<std::chrono::milliseconds>(steady_clock::now() - begin).count();
    const auto isOld = [age](const v1::WorkerStatus& worker) {
      const bool answers = worker.state() == "ready" || worker.state() == "stuck";
      return answers && (worker.stacks_age_ms() < 0 || worker.stacks_age_ms() > age);
    };
    const bool allCame = std::none_of(reply->workers().begin(), reply->workers().end(), isOld);
    if (allCame || steady_clock::now() + kRetryInterval >= deadline) {
      for (v1::WorkerStatus& worker : *reply->mutable_workers()) {
        if (worker.stacks_age_ms() > age) worker.clear_stacks();
      }
      return reply;
    }
    std::this_thread::sleep_for(kRetryInterval);
  }
}

absl::StatusOr<v1::StatusReply> DaemonClient::ask(const v1::StatusRequest& question, TimePoint deadline) {
  grpc::ClientContext context;
  context.set_deadline(forGrpc(deadline));
  v1::StatusRequest request = question;
  request.set_protocol(kProtocolVersion);
  v1::StatusReply reply;
  if (const grpc::Status status = stub_->GetStatus(&context, request, &reply); !status.ok()) return error(status);
  if (reply.protocol() != kProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat("dtorchctl ", kDtorchVersion, " speaks protocol ",
                                                      kProtocolVersion, ", dtorchd ", reply.version(), " at ", address_,
                                                      " speaks ", reply.protocol(), ": install the same release"));
  }
  return reply;
}

absl::StatusOr<v1::StatusReply> DaemonClient::waitUntilHealthy(TimePoint deadline) {
  for (;;) {
    const auto asked = steady_clock::now();
    absl::StatusOr<v1::StatusReply> reply = DaemonClient(address_).status(std::min(deadline, asked + kAnswerTimeout));
    if (reply.ok() && reply->health() == v1::HEALTH_HEALTHY) return reply;
    if (absl::IsFailedPrecondition(reply.status()) || steady_clock::now() + kRetryInterval >= deadline) return reply;
    std::this_thread::sleep_until(asked + kRetryInterval);
  }
}

absl::StatusOr<DaemonClient::Stopped> DaemonClient::stop(std::chrono::milliseconds drain, TimePoint deadline) {
  // One that is ending answers no more; asked first, since the question takes a second that it may not have left.
  if (const std::int64_t pid = endingDaemon(); pid != 0) return Stopped{pid, ProcessHandle(pid).waitForEnd(deadline)};
  const absl::StatusOr<v1::StatusReply> before = status(std::min(deadline, steady_clock::now() + kAnswerTimeout));
  if (!before.ok()) {
    if (const std::int64_t pid = endingDaemon(); pid != 0) return Stopped{pid, ProcessHandle(pid).waitForEnd(deadline)};
    return before.status();
  }
  // Opened before the daemon goes, so that the number cannot be another process's by then. Over TCP it is of no use.
  const bool local = absl::StartsWith(address_, "unix:");
  const ProcessHandle process(local ? before->pid() : -1);

  grpc::ClientContext context;
  context.set_deadline(forGrpc(deadline));
  v1::StopRequest request;
  request.set_protocol(kProtocolVersion);
  request.set_drain_ms(static_cast<std::uint32_t>(drain.count()));
  v1::StopReply reply;
  if (const grpc::Status status = stub_->Stop(&context, request, &reply); !status.ok()) return error(status);
  return Stopped{before->pid(), process.open() ? process.waitForEnd(deadline) : waitUntilDisconnected(deadline)};
}

std::int64_t DaemonClient::endingDaemon() const {
  absl::string_view path = address_;
  if (!absl::ConsumePrefix(&path, "unix:")) return 0;
  const std::filesystem::path socket{std::string(path)};
  std::error_code error;
  if (std::filesystem::exists(socket, error)) return 0;
  const int fd = ::open((socket.parent_path() / "dtorchd.pid").c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  std::array<char, 32> text{};
  std::int64_t pid = 0;
  const bool isHeld = ::flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  if (isHeld && ::pread(fd, text.data(), text.size() - 1, 0) > 0) pid = std::atoll(text.data());
  ::close(fd);
  return pid;
}

bool DaemonClient::waitUntilDisconnected(TimePoint deadline) {
  while (channel_->GetState(false) == GRPC_CHANNEL_READY) {
    if (!channel_->WaitForStateChange(GRPC_CHANNEL_READY, forGrpc(deadline))) return false;
  }
  return true;
}

}  // namespace dtorch
