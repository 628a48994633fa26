#pragma once
#include <ATen/core/Tensor.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/store/tensor_store.h"

namespace dtorch {

/// Sends and receives between pairs of ranks, on a TensorStore. Any number may be under way in any order, so that no
/// order of calls makes two ranks wait for each other; messages of one sender, receiver and tag arrive in the order in
/// which they were sent, at the receives in the order in which these were made. A send is done when its tensor has been
/// received; nothing is buffered.
///
/// Thread: safe. Owns: one thread, "dtorch-p2p", which copies and runs the callbacks.
/// Errors: INVALID_ARGUMENT at the receiver, with dtypes and counts, and FAILED_PRECONDITION at the sender, with the
/// same
///   text, when a tensor does not fit; UNAVAILABLE naming a peer that died; DEADLINE_EXCEEDED; ABORTED.
class PointToPoint {
 public:
  /// Called once, with the sender's rank after a receive.
  using Done = std::function<void(const absl::Status& status, Rank source)>;

  /// `store` knows its peers, `peers`.
  PointToPoint(std::unique_ptr<TensorStore> store, std::vector<Rank> peers);
  ~PointToPoint();

  /// The tensor must not change until `done`.
  void send(const at::Tensor& tensor, Rank to, int tag, std::chrono::milliseconds timeout, Done done);
  /// Fills `tensor`. `from`: nullopt takes what comes first from anybody.
  void receive(const at::Tensor& tensor, std::optional<Rank> from, int tag, std::chrono::milliseconds timeout,
               Done done);
  /// Ends all that is under way, and all that comes.
  void abort();

 private:
  struct Operation {
    bool isSend = false;
    at::Tensor tensor;
    std::optional<Rank> peer;
    int tag = 0;
    TensorStore::Deadline deadline;
    Done done;
    /// Of a send: its message's key, and whether the store has it.
    std::string key;
    bool isSet = false;
  };
  struct Outcome {
    absl::Status status;
    Rank source = -1;
  };
  using Channel = std::pair<Rank, int>;
  using Channels = std::set<Channel>;

  void submit(Operation operation);
  void loop();
  /// Goes on with an operation as far as it can be; nullopt: it waits. `awaited` is where receives before it wait: what
  /// comes there meanwhile is theirs.
  std::optional<Outcome> advanceLocked(Operation& operation, Channels& awaited);
  std::optional<Outcome> advanceSendLocked(Operation& operation);
  std::optional<Outcome> advanceReceiveLocked(Operation& operation, Channels& awaited);

  const std::unique_ptr<TensorStore> store_;
  const std::vector<Rank> peers_;

  std::mutex mutex_;
  std::list<Operation> operations_;
  /// Numbers of the next message for each peer and tag.
  std::map<Channel, std::uint64_t> toSend_;
  std::map<Channel, std::uint64_t> toReceive_;
  bool aborted_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace dtorch
