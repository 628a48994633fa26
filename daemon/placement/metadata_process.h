#pragma once
#include <sys/types.h>

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/tensor_meta.h"
#include "core/value.h"
#include "daemon/file_descriptor.h"
#include "dispatch/meta.h"
#include "dtorch/v1/metadata.pb.h"

namespace dtorch {

/// What an operator returns, as inferMeta() tells it.
using MetadataAnswer = absl::StatusOr<OutputMetas>;

/// Meta kernels in a process of their own. They are native code that takes whatever a client sends: some divide by an
/// argument, some never end, some ask for all memory. What happens there costs the call, not the daemon.
///
/// Thread: one, which must live as long as the process that it starts; cancel() is safe. Owns: the process; it is
/// started anew after it has ended.
/// Errors: inferMeta()'s; INVALID_ARGUMENT: the process ended, or took more than a second of processor time. One that
/// somebody has stopped (SIGSTOP) is replaced, and asked again.
class MetadataProcess {
 public:
  /// `libraries`: operator libraries, which it loads.
  explicit MetadataProcess(std::vector<std::string> libraries) : libraries_(std::move(libraries)) {}
  ~MetadataProcess() { stop(); }
  MetadataProcess(const MetadataProcess&) = delete;
  MetadataProcess& operator=(const MetadataProcess&) = delete;

  /// Starts the process ahead of its first use.
  void prepare() { start().IgnoreError(); }  // the first use tries again, and tells
  MetadataAnswer infer(const std::string& op, const std::vector<Value>& arguments,
                       absl::Span<const TensorMeta* const> inputs);
  /// Ends the wait for an answer, and all later ones.
  void cancel() { cancelled_ = true; }

 private:
  absl::Status start();
  /// Gives the process, once it is ready, something to answer. False: it ended, or is stopped.
  bool ask(const v1::MetadataRequest& request);
  bool receiveMessage(v1::MetadataReply* reply);
  /// Ends the process; how it ended.
  std::string stop();
  /// Waits until the process reads (POLLOUT), or has written (POLLIN), or has ended. False: it takes too long, is
  /// stopped, or cancel() was called.
  bool await(short event, double processorSecondsAtMost);
  bool send(const std::string& bytes);
  /// False: it ended, or as await().
  bool receive(char* data, std::size_t bytes, double processorSecondsAtMost);
  double processorSeconds() const;
  bool isStopped() const;

  const std::vector<std::string> libraries_;
  std::atomic<bool> cancelled_{false};
  pid_t pid_ = 0;
  bool ready_ = false;    // it has loaded LibTorch
  bool killed_ = false;   // by SIGKILL, of the last one that stop() has ended
  bool stopped_ = false;  // by a signal of somebody's, when await() returned false
  FileDescriptor socket_;
};

/// The first argument by which dtorchd runs as the metadata process, with its socket as descriptor kMetadataFd;
/// operator libraries follow.
inline constexpr const char* kMetadataArgument = "--metadata-process";
inline constexpr int kMetadataFd = 3;
/// Loads the libraries, then answers until the daemon closes the socket. The process's exit code.
int serveMetadata(const std::vector<std::string>& libraries);

}  // namespace dtorch
