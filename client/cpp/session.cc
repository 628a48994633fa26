#include "client/cpp/session.h"

#include <unistd.h>

#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/address.h"
#include "client/cpp/connection.h"
#include "client/cpp/fork.h"
#include "client/cpp/session_core.h"
#include "proto/version.h"

namespace dtorch {

absl::StatusOr<std::shared_ptr<Session>> Session::connect(ConnectOptions options) {
  static const int first = forkDepth();  // where gRPC works
  if (first != forkDepth()) return forkedError();
  const auto deadline = std::chrono::steady_clock::now() + options.timeout;
  const std::string address = options.address.empty() ? defaultAddress() : grpcAddress(options.address);
  if (absl::Status status = checkAddress(address); !status.ok()) return status;
  std::string client = absl::StrCat("dtorch-cpp ", kDtorchVersion, " pid ", ::getpid());
  if (!options.name.empty()) client = absl::StrCat(options.name, " (", client, ")");
  v1::ClientHello hello;
  hello.set_client(client);
  hello.set_sync(options.sync);
  hello.set_validate(options.validate);

  std::shared_ptr<Session> session(new Session);
  session->core_ = std::make_shared<SessionCore>();
  session->connection_ = std::make_unique<Connection>(address, std::move(hello), session->core_);
  absl::StatusOr<v1::Welcome> welcome = session->connection_->welcome(deadline);
  if (!welcome.ok()) return welcome.status();
  session->worldSize_ = welcome->world_size();
  session->id_ = welcome->session();
  session->daemonPid_ = welcome->daemon_pid();
  session->daemonVersion_ = welcome->version();
  session->cancelToken_ = welcome->cancel_token();

  std::vector<Rank> ranks(static_cast<std::size_t>(std::max(0, welcome->world_size())));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto type = static_cast<DeviceType>(welcome->device_type());
  absl::StatusOr<DeviceMesh> world = DeviceMesh::create(type, {welcome->world_size()}, std::move(ranks));
  if (!world.ok()) return absl::InternalError(absl::StrCat("dtorchd at ", address, " has no workers"));
  session->world_ = *session->core_->mesh(*world);  // the first one
  return session;
}

Session::~Session() {
  // Its threads are the parent's, and so is the memory that it lends.
  if (core_ != nullptr && core_->isParents()) static_cast<void>(connection_.release());
}

absl::StatusOr<Mesh> Session::mesh(std::vector<Rank> ranks, std::vector<std::int64_t> shape,
                                   std::vector<std::string> names) {
  for (const Rank rank : ranks) {
    if (rank >= worldSize_) {
      return absl::InvalidArgumentError(
          absl::StrCat("mesh rank ", rank, " does not exist: there are ", worldSize_, " workers"));
    }
  }
  if (shape.empty()) shape = {static_cast<std::int64_t>(ranks.size())};
  absl::StatusOr<DeviceMesh> device =
      DeviceMesh::create(world_.device().deviceType(), std::move(shape), std::move(ranks), std::move(names));
  if (!device.ok()) return device.status();
  return core_->mesh(*device);
}

Tensor Session::put(const HostView& value, const Mesh& mesh, Placements placements, const TransferOptions& options,
                    Site site) {
  return core_->put({&value, 1}, true, value.meta, mesh, placements, options, site);
}

Tensor Session::putShards(absl::Span<const HostView> parts, std::vector<std::int64_t> shape, const Mesh& mesh,
                          Placements placements, const TransferOptions& options, Site site) {
  const DType dtype = parts.empty() ? DType::kUnspecified : parts.front().meta.dtype;
  return core_->put(parts, false, {dtype, std::move(shape), {}}, mesh, placements, options, site);
}

Tensor Session::call(absl::string_view name, absl::Span<const Argument> arguments, const CallOptions& options,
                     Site site) {
  return core_->callOne(name, arguments, options, world_, site);
}

std::vector<Tensor> Session::callMany(absl::string_view name, absl::Span<const Argument> arguments,
                                      std::uint32_t outputs, const CallOptions& options, Site site) {
  return core_->call(name, arguments, outputs, options, world_, site);
}

Future<std::string> Session::explain(absl::string_view name, absl::Span<const Argument> arguments,
                                     std::uint32_t outputs, const CallOptions& options, Site site) {
  return Future<std::string>(core_->explain(name, arguments, outputs, options, world_, site));
}

Future<std::string> Session::rules() { return Future<std::string>(core_->rules()); }

Future<void> Session::declareRule(absl::string_view name, absl::string_view rule) {
  return Future<void>(core_->declareRule(name, rule));
}

Future<std::string> Session::redistributions(bool forget) {
  return Future<std::string>(core_->redistributions(forget));
}

absl::Status Session::cancel() {
  if (core_->isParents()) return forkedError();
  v1::CancelRequest request;
  request.set_protocol(kProtocolVersion);
  request.set_session(id_);
  request.set_token(cancelToken_);
  request.set_serial(core_->cancelCalls());
  return connection_->cancel(request);
}

Future<void> Session::awaitWorkers() { return Future<void>(core_->awaitWorkers()); }
Future<void> Session::synchronize() { return Future<void>(core_->synchronize()); }

}  // namespace dtorch
