#include "worker/reporter.h"

#include "proto/uninterrupted.h"

namespace dtorch {
namespace {
// How long the last reports may take to leave a worker that ends.
constexpr int kLingerMs = 500;
}  // namespace

Reporter::Reporter(zmq::context_t& context, const std::string& endpoint, Rank rank, std::uint64_t incarnation)
    : rank_(rank), incarnation_(incarnation), socket_(context, zmq::socket_type::push) {
  socket_.set(zmq::sockopt::sndhwm, 0);
  socket_.set(zmq::sockopt::linger, kLingerMs);
  socket_.connect(endpoint);
}

void Reporter::send(v1::Report* report) {
  report->set_rank(rank_);
  report->set_incarnation(incarnation_);
  zmq::message_t message(report->ByteSizeLong());
  report->SerializeToArray(message.data(), static_cast<int>(message.size()));
  report->Clear();
  const absl::MutexLock lock(&mutex_);
  uninterrupted([&] { return socket_.send(message, zmq::send_flags::dontwait); });
}

}  // namespace dtorch
