#include "daemon/placement/metadata_process.h"

#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dispatch/binding.h"
#include "dispatch/operator_library.h"
#include "dtorch/v1/metadata.pb.h"
#include "proto/codec.h"

namespace dtorch {
namespace {

constexpr double kProcessorSeconds = 1;
// In case it waits for something instead of computing; also covers its start on a busy machine.
constexpr int kLongestWaitMs = 30'000;
constexpr int kLookMs = 20;
constexpr int kEndMs = 1000;
// What a Meta kernel may take beyond what the process has at its start.
constexpr std::uint64_t kMemory = std::uint64_t{4} << 30;
// Sanitizers reserve terabytes of addresses: no limit makes sense then.
constexpr std::uint64_t kSanitized = std::uint64_t{1} << 40;

bool sendAll(int fd, const char* data, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t sent = ::send(fd, data, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    data += sent;
    bytes -= static_cast<std::size_t>(sent);
  }
  return true;
}

// After its length.
std::string encode(const google::protobuf::MessageLite& message) {
  std::string bytes(sizeof(std::uint32_t), '\0');
  message.AppendToString(&bytes);
  const auto length = static_cast<std::uint32_t>(bytes.size() - sizeof(std::uint32_t));
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes;
}

bool readAll(int fd, char* data, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t got = ::read(fd, data, bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    data += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

void limitMemory() {
  std::ifstream statm("/proc/self/statm");
  std::uint64_t pages = 0;
  statm >> pages;
  const std::uint64_t used = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  if (used > kSanitized) return;
  const rlimit limit{used + kMemory, used + kMemory};
  ::setrlimit(RLIMIT_AS, &limit);
}

MetadataAnswer answer(const v1::MetadataRequest& request) {
  absl::StatusOr<c10::OperatorHandle> op = findOperator(request.operator_name());
  if (!op.ok()) return op.status();
  std::vector<Value> arguments;
  for (const v1::Value& wire : request.arguments()) {
    absl::StatusOr<Value> value = fromWire(wire);
    if (!value.ok()) return value.status();
    arguments.push_back(*std::move(value));
  }
  std::vector<TensorMeta> metas;
  for (const v1::TensorMeta& wire : request.inputs()) {
    absl::StatusOr<TensorMeta> meta = fromWire(wire);
    if (!meta.ok()) return meta.status();
    metas.push_back(*std::move(meta));
  }
  std::vector<const TensorMeta*> inputs;
  for (const TensorMeta& meta : metas) inputs.push_back(&meta);
  return inferMeta(*op, arguments, inputs);
}

}  // namespace

MetadataAnswer MetadataProcess::infer(const std::string& op, const std::vector<Value>& arguments,
                                      absl::Span<const TensorMeta* const> inputs) {
  v1::MetadataRequest request;
  request.set_operator_name(op);
  for (const Value& argument : arguments) toWire(argument, request.add_arguments());
  for (const TensorMeta* input : inputs) toWire(*input, request.add_inputs());
  v1::MetadataReply reply;
  bool answered = false;
  for (int attempt = 0; !answered; ++attempt) {
    if (absl::Status status = start(); !status.ok()) return status;
    const bool asked = ask(request);
    answered = asked && receiveMessage(&reply);
    if (answered) break;
    // It may have been killed, for lack of memory on the machine, or stopped, by whoever: that says nothing about this
    // call, unless it happens again.
    const bool wasStopped = stopped_;
    if (wasStopped) spdlog::warn("the metadata process, pid {}, was stopped by a signal: another one is started", pid_);
    const std::string how = stop();
    if (attempt == 0 && (!asked || wasStopped || killed_)) continue;
    if (!asked || wasStopped) return absl::UnavailableError(absl::StrCat("the metadata process ", how));
    return absl::InvalidArgumentError(
        absl::StrCat("LibTorch cannot tell what it returns for these arguments: its Meta kernel ", how));
  }
  if (reply.has_error()) return fromWire(reply.error());
  if (reply.unknown()) return OutputMetas();
  if (reply.aliases_size() != reply.outputs_size()) return absl::InternalError("a metadata reply without aliases");
  std::vector<OutputMeta> outputs;
  for (int i = 0; i < reply.outputs_size(); ++i) {
    absl::StatusOr<TensorMeta> meta = fromWire(reply.outputs(i));
    if (!meta.ok()) return meta.status();
    outputs.push_back({*std::move(meta), reply.aliases(i)});
  }
  return OutputMetas(std::move(outputs));
}

bool MetadataProcess::ask(const v1::MetadataRequest& request) {
  char hello = 0;
  if (!ready_) ready_ = receive(&hello, 1, std::numeric_limits<double>::infinity());
  return ready_ && send(encode(request));
}

bool MetadataProcess::receiveMessage(v1::MetadataReply* reply) {
  const double limit = processorSeconds() + kProcessorSeconds;
  std::uint32_t length = 0;
  if (!receive(reinterpret_cast<char*>(&length), sizeof length, limit)) return false;
  std::string bytes(length, '\0');
  return receive(bytes.data(), length, limit) && reply->ParseFromString(bytes);
}

absl::Status MetadataProcess::start() {
  if (pid_ != 0) return absl::OkStatus();
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return absl::ErrnoToStatus(errno, "a socket pair for the metadata process");
  }
  socket_ = FileDescriptor(ends[0]);
  const FileDescriptor theirs(ends[1]);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, theirs.get(), kMetadataFd);
  ::posix_spawn_file_actions_addclosefrom_np(&actions, kMetadataFd + 1);
  posix_spawnattr_t attributes;
  sigset_t signals;
  ::posix_spawnattr_init(&attributes);
  ::sigemptyset(&signals);
  ::posix_spawnattr_setsigmask(&attributes, &signals);
  ::sigfillset(&signals);
  ::posix_spawnattr_setsigdefault(&attributes, &signals);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  std::string program = "/proc/self/exe";
  std::vector<std::string> command = {program, kMetadataArgument};
  command.insert(command.end(), libraries_.begin(), libraries_.end());
  std::vector<char*> arguments;
  for (std::string& argument : command) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  const int error = ::posix_spawn(&pid_, program.c_str(), &actions, &attributes, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (error == 0) return absl::OkStatus();
  pid_ = 0;
  return absl::ErrnoToStatus(error, "cannot run the metadata process");
}

std::string MetadataProcess::stop() {
  if (pid_ == 0) return "did not run";
  siginfo_t info{};
  // One that has ended by itself says more than one that is killed. Its socket closes shortly before that.
  pollfd closed{socket_.get(), 0, 0};
  if (::poll(&closed, 1, 0) > 0 && (closed.revents & POLLHUP) != 0) {
    const FileDescriptor process(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
    pollfd ended{process.get(), POLLIN, 0};
    ::poll(&ended, 1, kEndMs);
    ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT);
  }
  const bool ended = info.si_pid != 0;
  killed_ = ended && info.si_code != CLD_EXITED && info.si_status == SIGKILL;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = 0;
  ready_ = false;
  socket_ = FileDescriptor();
  if (!ended) return "took too much time or memory";
  return info.si_code == CLD_EXITED
             ? absl::StrCat("ended its process with exit code ", info.si_status)
             : absl::StrCat("ended its process by signal ", info.si_status, " (", ::strsignal(info.si_status), ")");
}

double MetadataProcess::processorSeconds() const {
  clockid_t clock{};
  timespec time{};
  if (::clock_getcpuclockid(pid_, &clock) != 0 || ::clock_gettime(clock, &time) != 0) return 0;
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

bool MetadataProcess::isStopped() const {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
}

bool MetadataProcess::await(short event, double processorSecondsAtMost) {
  stopped_ = false;
  for (int waited = 0; waited <= kLongestWaitMs; waited += kLookMs) {
    pollfd ready{socket_.get(), event, 0};
    const int count = ::poll(&ready, 1, kLookMs);
    if (count > 0) return true;
    if (count < 0 && errno != EINTR) return false;
    stopped_ = isStopped();
    if (stopped_ || cancelled_ || processorSeconds() > processorSecondsAtMost) return false;
  }
  return false;
}

bool MetadataProcess::send(const std::string& bytes) {
  for (std::size_t done = 0; done < bytes.size();) {
    if (!await(POLLOUT, std::numeric_limits<double>::infinity())) return false;
    const ssize_t sent = ::send(socket_.get(), bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (sent <= 0) return false;
    done += static_cast<std::size_t>(sent);
  }
  return true;
}

bool MetadataProcess::receive(char* data, std::size_t bytes, double processorSecondsAtMost) {
  while (bytes > 0) {
    if (!await(POLLIN, processorSecondsAtMost)) return false;
    const ssize_t got = ::read(socket_.get(), data, bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    data += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

int serveMetadata(const std::vector<std::string>& libraries) {
  // A daemon that is killed takes it along, even out of a kernel that never ends.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::prctl(PR_SET_NAME, "dtorch-metadata");
  at::set_num_threads(1);
  // The daemon has loaded them before, or it would not run.
  for (const std::string& path : libraries) loadOperatorLibrary(path).IgnoreError();
  limitMemory();
  const char hello = 0;
  if (!sendAll(kMetadataFd, &hello, 1)) return 0;
  std::string bytes;
  v1::MetadataRequest request;
  for (;;) {
    std::uint32_t length = 0;
    if (!readAll(kMetadataFd, reinterpret_cast<char*>(&length), sizeof length)) return 0;
    bytes.resize(length);
    if (!readAll(kMetadataFd, bytes.data(), length) || !request.ParseFromString(bytes)) return 1;
    v1::MetadataReply reply;
    const MetadataAnswer outputs = answer(request);
    if (!outputs.ok()) {
      toWire(outputs.status(), reply.mutable_error());
    } else if (!*outputs) {
      reply.set_unknown(true);
    } else {
      for (const OutputMeta& output : **outputs) {
        toWire(output.meta, reply.add_outputs());
        reply.add_aliases(output.alias);
      }
    }
    const std::string answered = encode(reply);
    if (!sendAll(kMetadataFd, answered.data(), answered.size())) return 0;
  }
}

}  // namespace dtorch
