#include "client/cpp/address.h"

#include <grpcpp/grpcpp.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/grpc_lifetime.h"

namespace dtorch {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::string defaultAddress() {
  if (const std::string given = environment("DTORCH_SOCKET"); !given.empty()) return grpcAddress(given);
  const std::string own = absl::StrCat("/tmp/dtorch-", ::getuid());
  const std::string runtime = environment("XDG_RUNTIME_DIR");
  std::vector<std::string> folders;
  if (!runtime.empty()) folders.push_back(absl::StrCat(runtime, "/dtorch"));
  folders.insert(folders.end(), {"/run/dtorch", own});
  for (const std::string& folder : folders) {
    const std::string path = absl::StrCat(folder, "/dtorchd.sock");
    if (::access(path.c_str(), F_OK) == 0) return grpcAddress(path);
  }
  return grpcAddress(absl::StrCat(runtime.empty() ? own : folders.front(), "/dtorchd.sock"));
}

std::string grpcAddress(const std::string& address) {
  // No host has a slash in it, and only a scheme ("unix:", "dns:///") has a colon before one.
  const std::size_t slash = address.find('/');
  const bool path = slash != std::string::npos && address.find(':') > slash;
  return path ? absl::StrCat("unix:", address) : address;
}

absl::Status checkAddress(const std::string& address) {
  constexpr std::size_t kMaxSocketPath = sizeof(sockaddr_un::sun_path) - 1;
  absl::string_view path = address;
  if (!absl::ConsumePrefix(&path, "unix:") || path.size() <= kMaxSocketPath) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the socket's path has ", path.size(), " bytes, the system allows ", kMaxSocketPath, ": ", path));
}

std::shared_ptr<grpc::Channel> makeChannel(const std::string& address) {
  keepGrpc();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(static_cast<int>(kMaxMessageBytes));
  arguments.SetMaxSendMessageSize(static_cast<int>(kMaxMessageBytes));
  // Each session has a connection of its own, so that one that does not read holds up no other.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(grpcAddress(address), grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace dtorch
