#include "client/cpp/tensor.h"

#include "client/cpp/session_core.h"

namespace dtorch {

Tensor Tensor::redistribute(Placements placements, const TransferOptions& options, Site site) const {
  return SessionCore::redistribute(*this, placements, {}, options, site);
}

Tensor Tensor::redistributeAsGradientOf(const Tensor& tensor, bool share, Site site) const {
  return SessionCore::redistribute(*this, {}, {tensor, share}, {}, site);
}

Future<HostTensor> Tensor::get() const { return Future<HostTensor>(SessionCore::get(*this, false, 0)); }

Future<HostTensor> Tensor::getLocal(Rank rank) const { return Future<HostTensor>(SessionCore::get(*this, true, rank)); }

Future<TensorInfo> Tensor::describe() const { return Future<TensorInfo>(SessionCore::describe(*this)); }

Tensor call(absl::string_view name, absl::Span<const Argument> arguments, const CallOptions& options, Site site) {
  SessionCore* session = SessionCore::sessionOf(arguments);
  if (session == nullptr) return SessionCore::withoutSession(name, arguments, site);
  return session->callOne(name, arguments, options, Mesh(), site);
}

std::vector<Tensor> callMany(absl::string_view name, absl::Span<const Argument> arguments, std::uint32_t outputs,
                             const CallOptions& options, Site site) {
  SessionCore* session = SessionCore::sessionOf(arguments);
  if (session == nullptr) return std::vector<Tensor>(outputs, SessionCore::withoutSession(name, arguments, site));
  return session->call(name, arguments, outputs, options, Mesh(), site);
}

}  // namespace dtorch
